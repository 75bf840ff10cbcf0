"""The run that extracts facts: episodes in order, for each a turn that asks a model; see `Orchestration`.

The event that begins a turn has the messages and the candidates that it was shown, so any process can
continue it. What an answer says is stored in the transaction of the event that ends the episode, once.
"""

from collections.abc import Collection, Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.agents.queries import AgentSettings
from luxx.domain.context.messages import PastMessage
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LimitReached, LuxxError
from luxx.features.memory.extraction.answers import (
    LOOK_AGAIN,
    PROMPT,
    REFLEXION_TOKENS,
    SCHEMA,
    FoundFacts,
    SaidBatch,
    asked,
    batch_tokens,
    corrected,
    read_extraction,
)
from luxx.features.memory.extraction.episodes import end_episodes, fail_episodes
from luxx.features.memory.extraction.resolution import EpisodeRows
from luxx.infra.config.schema import MemoryConfig
from luxx.runs.log.events import LogEntry
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.orchestration.interface import (
    Begin,
    Decision,
    End,
    InputEffect,
    Opening,
    Orchestration,
    ResolveTurn,
    RunTotals,
    TurnStart,
    Wait,
    Write,
)
from luxx.runs.turn.context import Heard
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import Closing, Ending, cost_entries
from luxx.wire.event import CallPurpose, ErrorEvent, Event, LoggedEvent, TurnNote
from luxx.wire.memory import EpisodeStatus
from luxx.wire.message import UserContent
from luxx.wire.orchestration_event import (
    CommunitiesUpdated,
    EntitiesMerged,
    EpisodeStart,
    EpisodeSynced,
    FactsRetired,
    MemoryComplete,
)
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import Step, StepType, TurnRef, steps_text
from luxx.wire.turn_event import Warning

MAX_CORRECTIONS = 2
"""How often the model gets the problems of its answer about one episode."""

MAX_FAILURES_IN_ROW = 2
"""Episodes that fail one after the other for a reason of the provider; then the run ends."""


class MemoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored request of a run: the scope, and its episodes in order by their `uid`."""

    scope_id: int
    episodes: list[str]


class Exchange(msgspec.Struct, frozen=True):
    """An answer of the model, and what it was asked after it."""

    answer: str
    asked: str


class EpisodeNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn was shown. `corrections`: how often an answer was not valid; `looks`: how often the model
    was asked to look through the messages, of `looks_wanted`."""

    batch: SaidBatch
    exchanges: list[Exchange] = []
    corrections: int = 0
    looks: int = 1
    looks_wanted: int = 1


_request = msgspec.json.Decoder(MemoryRequest)
_chat_request = msgspec.json.Decoder(ChatRequest)
_note = msgspec.json.Decoder(EpisodeNote)
_encode = msgspec.json.Encoder().encode


class MemoryOrchestration:
    """See `Orchestration`."""

    def __init__(
        self, head: RunHead, episodes: EpisodeRows, resolve: ResolveTurn, config: MemoryConfig
    ) -> None:
        self._head, self._episodes, self._resolve, self._config = head, episodes, resolve, config
        self._request = _request.decode(head.request)
        self._open: tuple[str, TurnNote] | None = None
        self._ended = self._facts = self._entities = self._synced = 0
        self._failures = 0
        self._has_communities = False
        self._error: LuxxError | None = None

    def apply(self, logged: LoggedEvent) -> None:
        event = logged.event
        match event:
            case EpisodeStart() if isinstance(logged.note, TurnNote):
                self._open = (str(event.step_id), logged.note)
            case EpisodeSynced():
                self._open = None
                self._ended += 1
                self._facts += event.facts
                self._entities += event.entities
                self._synced += event.status == EpisodeStatus.SYNCED.value
                self._failures = self._failures + 1 if event.status == EpisodeStatus.FAILED.value else 0
            case CommunitiesUpdated():
                self._has_communities = True
            case _:
                pass

    def is_open(self, key: str) -> bool:
        return self._open is not None and self._open[0] == key

    def open_turns(self) -> list[TurnStart]:
        if self._open is None:
            return []
        key, note = self._open
        return [_turn(key, _chat_request.decode(note.request), _note_of(note))]

    def to_cut(self) -> Collection[str]:
        return ()

    @property
    def max_turns(self) -> int | None:
        return 1

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        del waiting, totals
        if running:
            return Wait()
        if self._error is not None:
            return self._end_with(self._error)
        if self._is_open_or_left or (self._facts and not self._has_communities):
            return Begin()
        return self._end(RunStatus.COMPLETED, StopReason.FINISHED)

    @property
    def _is_open_or_left(self) -> bool:
        return self._open is not None or self._ended < len(self._request.episodes)

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        del begin, most, totals
        if self._open is not None:
            return Opening(turns=self.open_turns())
        if not self._is_open_or_left:
            return self._regrouped(session)
        uid = self._request.episodes[self._ended]
        batch = self._episodes.read_batch(session, self._head, self._request.scope_id, uid)
        if not isinstance(batch, SaidBatch):
            return self._skipped(uid, batch or "its messages were deleted, or it was extracted before")
        settings = AgentSettings(model=self._config.extraction_model or None, system_prompt=PROMPT, tools=[])
        try:
            request = self._resolve(session, self._head.user_id, settings, response_schema=SCHEMA)
        except LuxxError as error:
            return self._skipped(uid, f"no model can be asked: {error.message}")
        note = EpisodeNote(batch=batch, looks_wanted=2 if self._is_looked_through_twice(batch) else 1)
        key = f"{uid}-1"
        return Opening(turns=[_turn(key, request, note)], entries=[_start_entry(uid, key, request, note)])

    def _regrouped(self, session: Session) -> Opening:
        """Makes the communities anew; if that fails, those before stay, and the log says so."""
        groups = self._episodes.regrouped(session, self._request.scope_id)
        entries: list[LogEntry] = [CommunitiesUpdated(communities=groups.count)]
        if groups.problem:
            entries.insert(0, Warning(message=groups.problem))
        return Opening(entries=entries, write=groups.write)

    def _is_looked_through_twice(self, batch: SaidBatch) -> bool:
        wanted = self._config.enable_reflexion
        return batch_tokens(batch.messages) > REFLEXION_TOKENS if wanted == "auto" else bool(wanted)

    def _skipped(self, uid: str, reason: str) -> Opening:
        status = EpisodeStatus.SKIPPED
        event = EpisodeSynced(episode_id=uid, status=status.value, reason=reason)
        return Opening(entries=[event], write=self._ending([uid], status, reason))

    def _ending(self, uids: Sequence[str], status: EpisodeStatus, reason: str | None) -> Write:
        return partial(end_episodes, uids, status, reason)

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        assert self._open is not None
        note = _note_of(self._open[1])
        entries = cost_entries(start.purpose, cut)
        uid = self._request.episodes[self._ended]
        is_limit = isinstance(ending.error, LimitReached)
        if ending.status == RunStatus.CANCELLED or (is_limit and self._synced):
            self._error = ending.error
            return Closing(events=entries)
        if ending.error is not None:
            # An episode that no limit allows would begin each run anew.
            if is_limit or self._failures + 1 >= MAX_FAILURES_IN_ROW:
                self._error = ending.error
            return self._failed(entries, uid, ending.error.message)
        answer = steps_text(state.steps)
        found = read_extraction(answer, note.batch)
        if not isinstance(found, FoundFacts):
            if note.corrections == MAX_CORRECTIONS:
                problems = "; ".join(found.problems)
                return self._failed(entries, uid, f"the model's answer cannot be used: {problems}")
            exchange = Exchange(answer, corrected(found.problems))
            following = msgspec.structs.replace(
                note, exchanges=[*note.exchanges, exchange], corrections=note.corrections + 1
            )
            return self._again(entries, uid, start, following)
        if note.looks < note.looks_wanted and (found.facts or found.entities):
            exchange = Exchange(answer, LOOK_AGAIN)
            following = msgspec.structs.replace(
                note, exchanges=[*note.exchanges, exchange], looks=note.looks + 1
            )
            return self._again(entries, uid, start, following)
        return self._synced_closing(entries, uid, found, len(answer))

    def _again(self, entries: list[LogEntry], uid: str, start: TurnStart, note: EpisodeNote) -> Closing:
        key = f"{uid}-{len(note.exchanges) + 1}"
        entry = _start_entry(uid, key, start.request, note)
        return Closing(events=[*entries, entry])

    def _failed(self, entries: list[LogEntry], uid: str, reason: str) -> Closing:
        status = EpisodeStatus.FAILED
        event = EpisodeSynced(episode_id=uid, status=status.value, reason=reason)
        write = self._ending([uid], status, reason)
        return Closing(events=[*entries, event], write=write)

    def _synced_closing(self, entries: list[LogEntry], uid: str, found: FoundFacts, size: int) -> Closing:
        retired = [old.uid for fact in found.facts if (old := fact.retires()) is not None]
        events: list[LogEntry] = [*entries]
        events += (
            EntitiesMerged(episode_id=uid, entity_id=one.uid, into=into.uid) for one, into in found.same
        )
        if retired:
            events.append(FactsRetired(episode_id=uid, facts=retired))
        events.append(EpisodeSynced(episode_id=uid, facts=len(found.facts), entities=len(found.entities)))
        store = partial(self._store, uid, found)
        return Closing(events=events, write=store, size=size)

    def _store(self, uid: str, found: FoundFacts, connection: Connection) -> None:
        self._episodes.store(connection, self._head.id, self._request.scope_id, uid, found)

    def heard(self, key: str) -> Sequence[Heard]:
        del key
        return ()

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        del session, inputs  # No route gives this run any.
        return InputEffect()

    def on_stop(self, error: LuxxError | None) -> End:
        if error is not None:
            return self._end_with(error)
        rest = self._request.episodes[self._ended :]
        write = self._ending(rest, EpisodeStatus.SKIPPED, "a person cancelled the extraction")
        return msgspec.structs.replace(self._end(RunStatus.CANCELLED, StopReason.CANCELLED), write=write)

    def _end(self, status: RunStatus, reason: StopReason) -> End:
        return End(entries=[self._complete(status)], status=status, stop_reason=reason.value)

    def _end_with(self, error: LuxxError) -> End:
        """What is left waits for the next run: after a limit, until it allows that."""
        is_limit = isinstance(error, LimitReached)
        status = RunStatus.COMPLETED if is_limit else RunStatus.FAILED
        return End(
            entries=[ErrorEvent(message=error.message, code=error.kind), self._complete(status)],
            status=status,
            stop_reason=error.stop_reason if is_limit else StopReason.ERROR.value,
            error=error,
        )

    def _complete(self, status: RunStatus) -> MemoryComplete:
        return MemoryComplete(
            status=status.value, episodes=self._synced, facts=self._facts, entities=self._entities
        )


def load_memory_run(
    session: Session, head: RunHead, *, episodes: EpisodeRows, resolve: ResolveTurn, config: MemoryConfig
) -> Orchestration:
    """The orchestration of a run of the kind `memory`."""
    del session  # What it needs of the database it reads when a turn begins.
    return MemoryOrchestration(head, episodes, resolve, config)


def fail_memory(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Ends a run that cannot be driven. Its episodes have failed: the next run would meet the same again, and
    a person can retry them."""
    fail_episodes(connection, run.id, error.message)
    events: list[Event] = [
        ErrorEvent(message=error.message, code=error.kind),
        MemoryComplete(status=RunStatus.FAILED.value),
    ]
    return RunFailure(events=events, status=RunStatus.FAILED)


def _note_of(note: TurnNote) -> EpisodeNote:
    assert isinstance(note.data, msgspec.Raw)
    return _note.decode(note.data)


def _turn(key: str, request: ChatRequest, note: EpisodeNote) -> TurnStart:
    past = [PastMessage(user=UserContent(text=asked(note.batch)))]
    for exchange in note.exchanges:
        step = Step(id="step-0", index=0, type=StepType.TEXT, content=exchange.answer)
        past += [PastMessage(steps=(step,)), PastMessage(user=UserContent(text=exchange.asked))]
    return TurnStart(turn=TurnRef(step_id=key), request=request, past=past, purpose=CallPurpose.EXTRACTION)


def _start_entry(uid: str, key: str, request: ChatRequest, note: EpisodeNote) -> LogEntry:
    stored = TurnNote(request=msgspec.Raw(_encode(request)), data=msgspec.Raw(_encode(note)))
    event = EpisodeStart(
        step_id=key,
        episode_id=uid,
        messages=len(note.batch.messages),
        attempt=len(note.exchanges) + 1,
    )
    return event, stored
