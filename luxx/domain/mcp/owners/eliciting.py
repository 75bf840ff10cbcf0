"""Questions of MCP servers that wait for an answer: each is in the row of its call, until the answer is.

Of a stateful connection its owner asks and waits, and the process that drives the run asks the user. Of a
server without sessions the row is the state of a call that is made again. An answer is written in the
transaction that stores it, and sealed: its values are nowhere else. Not here: what servers may ask
(`domain/mcp/elicitation`).
"""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, Select, column, delete, insert, select, table, update

from luxx.domain.mcp.elicitation import (
    ANSWER_SECONDS,
    CANCELLED,
    AskedOfUser,
    Continued,
    Elicitation,
    ElicitationAnswer,
    answers_of,
    question_of_server,
    with_defaults,
)
from luxx.domain.mcp.models import CallState, McpCallRow
from luxx.domain.mcp.owners.rows import NewOwnerCall, OwnerCall, is_begun
from luxx.errors import LuxxError, ToolFailed
from luxx.infra.clock import new_id, utc_now
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.tools.core import ToolContext
from luxx.wire.event import QuestionAnswered
from luxx.wire.run import ElicitationChoice, Question

POLL_SECONDS = 1.0
"""How often an owner looks for an answer without a message, and whether the run still waits."""

LONGEST_WAIT = ANSWER_SECONDS + 60.0

logger = structlog.get_logger()

_calls = table_of(McpCallRow)
_runs = table("runs", column("id"), column("finished_at"))
_encode = msgspec.json.Encoder().encode
_asked = msgspec.json.Decoder(AskedOfUser)
_answers = msgspec.json.Decoder(dict[str, ElicitationAnswer])


class PausedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call without a connection whose server has asked. `is_sent`: it was made again, and has no answer."""

    asked: AskedOfUser
    is_sent: bool


class McpElicitations:
    """One per process."""

    def __init__(self, store: Store, vault: Vault) -> None:
        self._store = store
        self._vault = vault
        self._waiting: dict[str, asyncio.Event] = {}

    # The owner of a connection

    def wake(self, call_id: str) -> None:
        """There may be an answer."""
        if (event := self._waiting.get(call_id)) is not None:
            event.set()

    def put(self, connection: Connection, call: OwnerCall, elicitation: Elicitation) -> str | None:
        """Writes a question into the row of a call; returns its id, and None if the call is over."""
        question = with_id(elicitation, call.id)
        text = _encode(AskedOfUser(questions=[question])).decode()
        values = {"status": CallState.ASKING.value, "asked": text, "answer": None}
        written = connection.execute(update(_calls).where(is_begun(call)).values(values))
        return question.id if written.rowcount == 1 else None

    async def wait(self, call: OwnerCall, elicitation_id: str) -> ElicitationAnswer | None:
        """The answer, which is taken out of the row; None if nobody waits for the call any more."""
        event = self._waiting[call.id] = asyncio.Event()
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                while True:
                    # Most looks find nothing, and need no transaction that writes.
                    if await self._store.read_rows(lambda connection: _is_settled(connection, call)):
                        found = await self._store.write_rows(lambda connection: self._take(connection, call))
                        return None if found is None else found.get(elicitation_id, CANCELLED)
                    event.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_SECONDS):
                            await event.wait()
        except TimeoutError:
            return CANCELLED
        finally:
            self._waiting.pop(call.id, None)

    def _take(self, connection: Connection, call: OwnerCall) -> dict[str, ElicitationAnswer] | None:
        """The answers, which are taken out of the row; None if the call is over."""
        row = connection.execute(_answered(call)).first()
        if row is None or row.answer is None or row.is_cancelled or row.finished_at is not None:
            return None
        running = {"status": CallState.RUNNING.value, "answer": None}
        connection.execute(update(_calls).where(is_begun(call)).values(running))
        return self._opened(call.id, row.answer)

    # The process that drives the run

    async def answer(self, server: str, row_id: str, asked: AskedOfUser, context: ToolContext) -> Continued:
        """Asks the run's user what has no answer yet, and writes the answers into the row, where those with
        values are. Raises NeedsAnswer."""
        choices: dict[str, ElicitationChoice] = {}
        for elicitation in asked.questions:
            try:
                given = await context.actions.ask(question_of_server(server, elicitation))
            except ToolFailed:
                # Nobody can be asked here.
                given = {"answer": ElicitationChoice.CANCEL}
            choices[elicitation.id] = ElicitationChoice(given["answer"])

        def write(connection: Connection) -> dict[str, ElicitationAnswer]:
            given = self._read(connection, row_id)
            for elicitation in asked.questions:
                choice = choices[elicitation.id]
                if choice is ElicitationChoice.ACCEPT and elicitation.schema is not None:
                    # Without its values nothing can be accepted.
                    given.setdefault(elicitation.id, CANCELLED)
                else:
                    given.setdefault(elicitation.id, ElicitationAnswer(action=choice))
            self._write(connection, row_id, given)
            return given

        answers = await self._store.write_rows(write)
        return answers_of(asked, [answers[one.id] for one in asked.questions])

    def keep_values(
        self,
        connection: Connection,
        question: Question,
        answered: QuestionAnswered,
        values: dict[str, Any] | None,
    ) -> None:
        """Keeps a person's answer, if the call still waits for it. See `KeepValues` of `runs`."""
        elicitation_id = str(question.elicitation_id)
        row_id = elicitation_id.partition(".")[0]
        text = connection.scalar(select(_calls.c.asked).where(_waits(row_id)).with_for_update())
        if text is None or elicitation_id not in {one.id for one in _asked.decode(text).questions}:
            return
        has_values = answered.answer == ElicitationChoice.ACCEPT and isinstance(
            question.requested_schema, dict
        )
        answer = ElicitationAnswer(
            action=ElicitationChoice(str(answered.answer)),
            content=with_defaults(question, values or {}) if has_values else None,
        )
        self._write(connection, row_id, {**self._read(connection, row_id), elicitation_id: answer})

    def _read(self, connection: Connection, row_id: str) -> dict[str, ElicitationAnswer]:
        text = connection.scalar(select(_calls.c.answer).where(_waits(row_id)))
        return {} if text is None else self._opened(row_id, text)

    def _write(self, connection: Connection, row_id: str, answers: dict[str, ElicitationAnswer]) -> None:
        sealed = self._vault.seal(_encode(answers).decode(), identity=_identity(row_id))
        connection.execute(update(_calls).where(_waits(row_id)).values(answer=sealed))

    def _opened(self, row_id: str, sealed: str) -> dict[str, ElicitationAnswer]:
        try:
            return _answers.decode(self._vault.open(sealed, identity=_identity(row_id)))
        except LuxxError:
            logger.warning("mcp_answer_unreadable", call=row_id)
            return {}

    # Calls without a connection

    async def paused(self, row_id: str) -> PausedCall | None:
        """The call of this id that has asked, if there is one."""
        return await self._store.read_rows(lambda connection: read_paused(connection, row_id))

    async def pause(self, new: NewOwnerCall, asked: AskedOfUser, process: str) -> AskedOfUser:
        """Keeps what a server asked before the call is made again; returns it with ids."""
        asked = msgspec.structs.replace(asked, questions=[with_id(one, new.id) for one in asked.questions])
        values = msgspec.structs.asdict(new) | {
            "connection_id": None,
            "status": CallState.ASKING.value,
            "is_repeated": False,
            "is_cancelled": False,
            "caller": process,
            "created_at": utc_now(),
            "asked": _encode(asked).decode(),
        }

        def write(connection: Connection) -> None:
            connection.execute(delete(_calls).where(_calls.c.id == new.id))
            connection.execute(insert(_calls).values(values))

        await self._store.write_rows(write)
        return asked

    async def send(self, row_id: str) -> None:
        """The call is made again now. Its answers are in memory only: it is not made a third time."""
        values = {"status": CallState.RUNNING.value, "answer": None}
        await self._store.write_rows(
            lambda connection: connection.execute(update(_calls).where(_calls.c.id == row_id).values(values))
        )


def read_paused(connection: Connection, row_id: str) -> PausedCall | None:
    query = select(_calls.c.asked, _calls.c.status).where(
        _calls.c.id == row_id, _calls.c.connection_id.is_(None), _calls.c.asked.is_not(None)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    return PausedCall(asked=_asked.decode(row.asked), is_sent=row.status != CallState.ASKING.value)


def with_id(elicitation: Elicitation, row_id: str) -> Elicitation:
    """The question with an id that no other has, and that leads to the row of its call."""
    return msgspec.structs.replace(elicitation, id=f"{row_id}.{new_id()}")


def decode_asked(text: str) -> AskedOfUser:
    return _asked.decode(text)


def _answered(call: OwnerCall) -> Select[Any, Any, Any]:
    """The answers in the row of a call, and what ends it."""
    return (
        select(_calls.c.answer, _calls.c.is_cancelled, _runs.c.finished_at)
        .outerjoin(_runs, _runs.c.id == _calls.c.run_id)
        .where(is_begun(call))
    )


def _is_settled(connection: Connection, call: OwnerCall) -> bool:
    """Whether a call has answers, or is over."""
    row = connection.execute(_answered(call)).first()
    return row is None or row.is_cancelled or row.finished_at is not None or row.answer is not None


def _waits(row_id: str) -> ColumnElement[bool]:
    return (_calls.c.id == row_id) & (_calls.c.status == CallState.ASKING.value)


def _identity(row_id: str) -> str:
    return f"mcp_calls:{row_id}"
