"""Titles: after the first answer of a conversation, a model that the user or the tenant has named for it
writes a title in place of the first words.

Each heartbeat of any process looks at the answers whose `run_ended` row it finds. One transaction deletes the
row, marks the conversation as asked for, and inserts a run of the kind `title`, a child of the one that
answered: so each conversation is asked for once, and the run needs no slot. The title is stored only where
the first words still stand and nobody has typed a title.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import msgspec
import structlog
from sqlalchemy import Connection, bindparam, delete, null, select, update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.models import Tenant, UserSettings
from luxx.domain.agents.queries import AgentSettings
from luxx.domain.context.messages import PastMessage
from luxx.domain.conversations.access import assistant_steps, shortened, user_content
from luxx.domain.conversations.models import ConversationRow, MessageRow, TitleFrom
from luxx.domain.conversations.search_index import index_title
from luxx.domain.usage.reserve import check_daily_limits, without_level1
from luxx.errors import InvalidInput, LuxxError, Unavailable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.admission import Admission
from luxx.runs.log.endings import TITLES, RunEndedRow
from luxx.runs.models import RunRow
from luxx.runs.orchestration.interface import Orchestration, ResolveTurn, TurnStart, Write
from luxx.runs.orchestration.single_turn import StoringTurn
from luxx.runs.turn.run_rows import RunHead, RunOwner, insert_run, new_run
from luxx.runs.turn.state import ChatRequest
from luxx.wire.event import CallPurpose
from luxx.wire.message import UserContent
from luxx.wire.orchestration_event import TitleComplete
from luxx.wire.run import Run, RunKind, RunStatus
from luxx.wire.turn import CHAT_TURN, steps_text

PROMPT = files("luxx.features.chats").joinpath("title.md").read_text("utf-8").strip()

SHOWN_CHARACTERS = 2000
"""How much of the message and of the answer the model is shown."""

ANSWER_TOKENS = 2000
"""The limit of its answer, for a model that cannot be kept from thinking."""

RUNS_AT_ONCE = 50

LINE_CHARACTERS = 400
"""How much of a line is looked at; more is no title."""

_ended, _conversations = table_of(RunEndedRow), table_of(ConversationRow)
_due = (
    select(_ended.c.run_id, _ended.c.user_id)
    .where(_ended.c.reader == TITLES)
    .order_by(_ended.c.ended_at)
    .limit(RUNS_AT_ONCE)
)
_forget = delete(_ended).where(_ended.c.reader == TITLES, _ended.c.run_id == bindparam("run"))
_ask = (
    update(_conversations)
    .where(
        _conversations.c.id == bindparam("b_id"),
        _conversations.c.import_id.is_(None),
        _conversations.c.title_from == TitleFrom.WORDS.value,
    )
    .values(title_from=TitleFrom.ASKED.value)
)
_set_title = (
    update(_conversations)
    .where(
        _conversations.c.id == bindparam("b_id"),
        _conversations.c.import_id.is_(None),
        _conversations.c.title_from == TitleFrom.ASKED.value,
        _conversations.c.title == bindparam("b_before"),
    )
    .values(title=bindparam("b_title"), title_from=null())
)
_encode = msgspec.json.Encoder().encode

logger = structlog.get_logger()


class TitleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored request of a run: what the model is shown, and the title that it may replace."""

    before: str
    shown: str
    request: ChatRequest


_request = msgspec.json.Decoder(TitleRequest)


@dataclass(frozen=True, slots=True, repr=False)
class TitleWriting:
    """Starts the runs that name conversations; one per process."""

    admission: Admission
    resolve: ResolveTurn

    async def look(self) -> None:
        """Looks at the answers that have ended; called at heartbeats."""
        store = self.admission.services.store
        for row in await store.read_rows(lambda connection: connection.execute(_due).all()):
            try:
                await self._look_at(row.run_id, row.user_id)
            except Unavailable:
                return  # This server stops; another one, or its next start, goes on.
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:
                # The first words stay; the next answer of the conversation asks again.
                trace = None if isinstance(error, LuxxError) else error
                logger.info("conversation_not_named", run_id=row.run_id, problem=str(error), exc_info=trace)
                forget = partial(_forget_ending, row.run_id)
                await store.write_rows(forget)

    async def _look_at(self, run_id: str, user_id: int) -> None:
        store = self.admission.services.store
        caller = await store.read_rows(lambda connection: user_as_caller(connection, user_id))
        run = await self.admission.admit(caller, partial(self._insert, run_id))
        if run is not None:
            await self.admission.begin(run)

    def _insert(self, run_id: str, session: Session) -> Run | None:
        connection = session.connection()
        if not _forget_ending(run_id, connection):
            return None  # Another process was faster.
        answered = session.get(RunRow, run_id)
        if answered is None:
            return None
        shown, settings = _shown(session, answered), _settings(session, answered)
        if not shown or settings is None:
            return None
        if not connection.execute(_ask, {"b_id": answered.subject_id}).rowcount:
            return None
        limits = without_level1(self.admission.services.config.limits)
        check_daily_limits(connection, answered.user_id, limits, utc_now())
        request = self.resolve(session, answered.user_id, settings)
        before = session.scalars(
            select(ConversationRow.title).where(ConversationRow.id == answered.subject_id)
        ).one()
        run = new_run(
            new_id(), answered.subject_id, kind=RunKind.TITLE, parent_run_id=answered.id, request=request
        )
        stored = _encode(TitleRequest(before=before, shown=shown, request=request)).decode()
        owner = RunOwner(answered.user_id, answered.tenant_id)
        insert_run(connection, run, stored, owner, self.admission.engine.process)
        return run


def _forget_ending(run_id: str, connection: Connection) -> bool:
    return connection.execute(_forget, {"run": run_id}).rowcount == 1


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


def _settings(session: Session, run: RunRow) -> AgentSettings | None:
    """The model that the user has named, else the one of the tenant; None: neither names one any more."""
    own = session.scalar(select(UserSettings).where(UserSettings.user_id == run.user_id))
    for named in (own, session.get(Tenant, run.tenant_id)):
        if named is not None and named.lost_title_provider is not None:
            return None  # What was chosen is not replaced by another.
        if named is not None and named.title_provider_id is not None:
            return AgentSettings(
                provider_id=named.title_provider_id, model=named.title_model, system_prompt=PROMPT, tools=[],
                thinking_enabled=False, max_tokens=ANSWER_TOKENS, chosen_by="the settings of titles",
            )  # fmt: skip
    return None


class TitleOrchestration(StoringTurn):
    """One run in one drive. See `Orchestration`."""

    complete = TitleComplete

    def __init__(self, head: RunHead) -> None:
        super().__init__()
        self._head = head
        self._request = _request.decode(head.request)

    def turn(self) -> TurnStart:
        past = [PastMessage(user=UserContent(text=self._request.shown))]
        return TurnStart(turn=CHAT_TURN, request=self._request.request, past=past, purpose=CallPurpose.TITLE)

    def read(self, answer: str) -> tuple[TitleComplete, Write]:
        title = read_title(answer)
        if not title:
            raise InvalidInput("it has no title", kind="answer_unusable")
        return TitleComplete(status=RunStatus.COMPLETED.value, title=title), partial(self._store, title)

    def _store(self, title: str, connection: Connection) -> None:
        values = {"b_id": self._head.subject_id, "b_before": self._request.before, "b_title": title}
        if connection.execute(_set_title, values).rowcount:
            index_title(
                connection, user_id=self._head.user_id, conversation_id=self._head.subject_id, title=title
            )


_JOINERS = "\u200c\u200d"
"""Invisible characters that belong to words of some scripts and to emoji."""

_link = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
_emphasis = re.compile(r"(\*\*|__|~~|\*|(?<!\w)_)(?=\S)(.+?)(?<=\S)(?:\1)(?!\w)")
_opening = re.compile(r"^(?:#{1,6}\s+|>\s*|[-*+]\s+|\d{1,3}[.)]\s+)+")
_label = re.compile(r"^(?:title|titel|titre|título|titolo|标题|標題)\s*[:：]\s*", re.IGNORECASE)
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "«": "»", "「": "」", "《": "》", "‘": "’"}


def read_title(answer: str) -> str:
    """The first line of an answer that has words, as plain text of at most TITLE_LENGTH characters; empty if
    it has none."""
    for line in answer[: 2 * SHOWN_CHARACTERS].splitlines():
        title = _plain(line[:LINE_CHARACTERS])
        if any(character.isalnum() for character in title):
            return shortened(title)
    return ""


def _plain(line: str) -> str:
    """The line without control characters, Markdown and the quotation marks around it."""
    visible = "".join(
        character if character in _JOINERS or unicodedata.category(character)[0] != "C" else " "
        for character in line
    )
    text = _opening.sub("", " ".join(visible.split()))
    text = _link.sub(r"\1", text).replace("`", "")
    text = _emphasis.sub(r"\2", _emphasis.sub(r"\2", text))
    text = _label.sub("", text).strip()
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1]
    return text.strip()


def load_title(session: Session, head: RunHead) -> Orchestration:
    """The orchestration of a run of the kind `title`."""
    del session  # Its request has what it needs of the database.
    return TitleOrchestration(head)
