"""Side runs: after an answer, a model that the user or the tenant has named for it writes something short
about it: a title (`titles.py`), the next messages that a person might send (`follow_ups.py`).

Each heartbeat of any process looks at the answers whose `run_ended` rows it finds. One transaction deletes
the row and inserts a run, a child of the one that answered: so each answer is used once for each kind, and
the run needs no slot.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import msgspec
import structlog
from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.models import Tenant, UserSettings
from luxx.domain.agents.queries import AgentSettings
from luxx.domain.context.messages import PastMessage
from luxx.domain.conversations.access import assistant_steps, user_content
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.usage.reserve import check_daily_limits, without_level1
from luxx.errors import LuxxError, Unavailable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.admission import Admission
from luxx.runs.log.endings import RunEndedRow
from luxx.runs.models import RunRow
from luxx.runs.orchestration.interface import ResolveTurn, TurnStart
from luxx.runs.orchestration.single_turn import StoringTurn
from luxx.runs.turn.run_rows import RunHead, RunOwner, insert_run, new_run
from luxx.runs.turn.state import ChatRequest
from luxx.wire.event import CallPurpose
from luxx.wire.message import UserContent
from luxx.wire.run import Run, RunKind
from luxx.wire.turn import CHAT_TURN, steps_text

SHOWN_CHARACTERS = 2000
"""How much of the message and of the answer the model is shown."""

ANSWER_TOKENS = 2000
"""The limit of its answer, for a model that cannot be kept from thinking."""

RUNS_AT_ONCE = 50

LINE_CHARACTERS = 400
"""How much of a line is looked at."""

_ended = table_of(RunEndedRow)
_due = (
    select(_ended.c.run_id, _ended.c.user_id, _ended.c.reader)
    .where(_ended.c.reader.in_(bindparam("readers", expanding=True)))
    .order_by(_ended.c.ended_at)
    .limit(RUNS_AT_ONCE)
)
_forget = delete(_ended).where(_ended.c.reader == bindparam("reader"), _ended.c.run_id == bindparam("run"))
_encode = msgspec.json.Encoder().encode

logger = structlog.get_logger()


class SideRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored request of a run: what the model is shown, the title that it may replace and the answer that
    it follows."""

    before: str = ""
    message_id: str = ""
    shown: str
    request: ChatRequest


_request = msgspec.json.Decoder(SideRequest)


@dataclass(frozen=True, slots=True, repr=False)
class SideWork:
    """What side runs of a kind are started with. `claim` says, in the transaction that inserts the run,
    whether it is still wanted; it marks what must be asked for only once."""

    kind: RunKind
    prompt: str
    claim: Callable[[Connection, RunRow], bool]


@dataclass(frozen=True, slots=True, repr=False)
class SideRuns:
    """Starts the side runs; one per process. `works`: by the reader of their `run_ended` rows."""

    admission: Admission
    resolve: ResolveTurn
    works: Mapping[str, SideWork]

    async def look(self) -> None:
        """Looks at the answers that have ended; called at heartbeats."""
        store = self.admission.services.store
        values = {"readers": list(self.works)}
        for row in await store.read_rows(lambda connection: connection.execute(_due, values).all()):
            try:
                await self._look_at(row.reader, row.run_id, row.user_id)
            except Unavailable:
                return  # This server stops; another one, or its next start, goes on.
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:
                # Nothing is shown; the next answer of the conversation asks again.
                trace = None if isinstance(error, LuxxError) else error
                logger.info(
                    "side_run_not_started", reader=row.reader, run_id=row.run_id, problem=str(error),
                    exc_info=trace,
                )  # fmt: skip
                await store.write_rows(partial(_forget_ending, row.reader, row.run_id))

    async def _look_at(self, reader: str, run_id: str, user_id: int) -> None:
        store = self.admission.services.store
        caller = await store.read_rows(lambda connection: user_as_caller(connection, user_id))
        run = await self.admission.admit(caller, partial(self._insert, reader, run_id))
        if run is not None:
            await self.admission.begin(run)

    def _insert(self, reader: str, run_id: str, session: Session) -> Run | None:
        connection, work = session.connection(), self.works[reader]
        if not _forget_ending(reader, run_id, connection):
            return None  # Another process was faster.
        answered = session.get(RunRow, run_id)
        if answered is None:
            return None
        shown, settings = _shown(session, answered), _settings(session, answered, work.prompt)
        if not shown or settings is None or not work.claim(connection, answered):
            return None
        limits = without_level1(self.admission.services.config.limits)
        check_daily_limits(connection, answered.user_id, limits, utc_now())
        request = self.resolve(session, answered.user_id, settings)
        before = session.scalars(
            select(ConversationRow.title).where(ConversationRow.id == answered.subject_id)
        ).one()
        run = new_run(
            new_id(), answered.subject_id, kind=work.kind, parent_run_id=answered.id, request=request
        )
        stored = SideRequest(
            before=before, message_id=answered.message_id or "", shown=shown, request=request
        )
        owner = RunOwner(answered.user_id, answered.tenant_id)
        insert_run(connection, run, _encode(stored).decode(), owner, self.admission.engine.process)
        return run


def _forget_ending(reader: str, run_id: str, connection: Connection) -> bool:
    return connection.execute(_forget, {"reader": reader, "run": run_id}).rowcount == 1


def _shown(session: Session, run: RunRow) -> str:
    """What a model is shown of a question and its answer; empty if one of them is gone."""
    question = None if run.question_id is None else session.get(MessageRow, run.question_id)
    answer = None if run.message_id is None else session.get(MessageRow, run.message_id)
    if question is None or answer is None:
        return ""
    content = user_content(question.content)
    said = content.text or ", ".join(file.name for file in content.attachments)
    answered = steps_text(assistant_steps(answer.content))
    parts = (("message", said), ("answer", answered))
    return "\n".join(f"<{name}>\n{text[:SHOWN_CHARACTERS]}\n</{name}>" for name, text in parts)


def _settings(session: Session, run: RunRow, prompt: str) -> AgentSettings | None:
    """The model that the user has named, else the one of the tenant; None: neither names one any more."""
    own = session.scalar(select(UserSettings).where(UserSettings.user_id == run.user_id))
    for named in (own, session.get(Tenant, run.tenant_id)):
        if named is not None and named.lost_title_provider is not None:
            return None  # What was chosen is not replaced by another.
        if named is not None and named.title_provider_id is not None:
            return AgentSettings(
                provider_id=named.title_provider_id, model=named.title_model, system_prompt=prompt, tools=[],
                thinking_enabled=False, max_tokens=ANSWER_TOKENS, chosen_by="the settings of titles",
            )  # fmt: skip
    return None


class SideTurn(StoringTurn):
    """One run in one drive. See `Orchestration`; a subclass reads and stores the answer."""

    purpose: ClassVar[CallPurpose]

    def __init__(self, head: RunHead) -> None:
        super().__init__()
        self._head = head
        self._request = _request.decode(head.request)

    def turn(self) -> TurnStart:
        past = [PastMessage(user=UserContent(text=self._request.shown))]
        return TurnStart(turn=CHAT_TURN, request=self._request.request, past=past, purpose=self.purpose)


_JOINERS = "\u200c\u200d"
"""Invisible characters that belong to words of some scripts and to emoji."""

_link = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
_emphasis = re.compile(r"(\*\*|__|~~|\*|(?<!\w)_)(?=\S)(.+?)(?<=\S)(?:\1)(?!\w)")
_opening = re.compile(r"^(?:#{1,6}\s+|>\s*|[-*+]\s+|\d{1,3}[.)]\s+)+")
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "«": "»", "「": "」", "《": "》", "‘": "’"}


def plain_lines(answer: str) -> list[str]:
    """The lines of an answer that have words, as plain text: without control characters, Markdown and the
    marks of a list."""
    lines = (_plain(line[:LINE_CHARACTERS]) for line in answer[: 2 * SHOWN_CHARACTERS].splitlines())
    return [line for line in lines if any(character.isalnum() for character in line)]


def _plain(line: str) -> str:
    visible = "".join(
        character if character in _JOINERS or unicodedata.category(character)[0] != "C" else " "
        for character in line
    )
    text = _opening.sub("", " ".join(visible.split()))
    text = _link.sub(r"\1", text).replace("`", "")
    return _emphasis.sub(r"\2", _emphasis.sub(r"\2", text)).strip()


def unquoted(line: str) -> str:
    """The line without quotation marks around it."""
    is_quoted = len(line) > 1 and _QUOTES.get(line[0]) == line[-1]
    return line[1:-1].strip() if is_quoted else line
