"""The tool `summary`: what a text, episodes of memory or a document of a knowledge base say, in short.

A long text is divided into parts, each of which a model is asked for by itself: in a run by subagents without
tools, which a crash does not repeat, otherwise by calls that store nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Any

from msgspec import Meta, Struct
from sqlalchemy import Connection, Row, select

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.context.tokens import beginning, text_tokens
from luxx.errors import InvalidInput, ToolFailed
from luxx.features.knowledge.rows import chunks, documents, place_of_chunk
from luxx.features.knowledge.tools import usable_bases
from luxx.features.memory.extraction.episode_tool import episodes_of, shown_messages
from luxx.features.memory.tools import answer_for_model, used_scopes
from luxx.infra.store.engine import Store
from luxx.tools.core import ToolContext, cache_never
from luxx.tools.factory import ToolFunction, tool
from luxx.wire.delegation import Assignment, Delegation, DelegationStrategy, SubagentEnd, problem_of
from luxx.wire.memory import EpisodeStatus
from luxx.wire.message import fenced

PART_TOKENS = 8_000
"""Of the text that one model call is given."""

MAX_PARTS = 20
"""Of one text; what is longer is summarised as far as that, and the result says so."""

CALLS_AT_ONCE = 3
"""Calls that one use of the tool without a run makes at the same time."""

MAX_SECONDS = 3_600.0
INSTRUCTIONS = files("luxx.features.knowledge").joinpath("summary.md").read_text("utf-8").strip()

Text = Annotated[str, Meta(min_length=1, max_length=500_000, description="The text itself")] | None
EpisodeIds = (
    Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=36)]],
        Meta(min_length=1, max_length=20, description="Ids of episodes, as episode_retrieval gives them"),
    ]
    | None
)
DocumentId = (
    Annotated[
        str,
        Meta(min_length=1, max_length=36, description="A document, as knowledge_search gives it"),
    ]
    | None
)


class SummaryStyle(StrEnum):
    """What a summary looks like."""

    SHORT = "short"
    DETAILED = "detailed"
    BULLETS = "bullets"


_STYLES = {
    SummaryStyle.SHORT: "Write one paragraph of at most 120 words.",
    SummaryStyle.DETAILED: "Write several paragraphs in the order of the text, of at most 500 words.",
    SummaryStyle.BULLETS: "Write a list of at most ten points, one a line.",
}


class Passage(Struct, frozen=True):
    """A piece of a text. `place`: where it is, such as a page; empty if that has no name."""

    text: str
    place: str = ""


class Summarized(Struct, frozen=True, kw_only=True):
    """A text as one call is given it; `place`: from where to where, empty if that has no name."""

    text: str
    place: str = ""


class PartSummary(Struct, frozen=True, kw_only=True):
    """The summary of a part, or why there is none."""

    text: str = ""
    problem: str | None = None


class SummaryTool:
    """Makes the tool. One per process. `ask_once` asks a model for a caller where no run does: a text and
    instructions. What does it is made after the tools."""

    ask_once: Callable[[Caller, str, str], Awaitable[SubagentEnd]]

    def __init__(self, store: Store) -> None:
        self._store = store

    def function(self) -> ToolFunction:
        """The tool."""

        @tool(
            name="summary",
            category="memory",
            repeatable=True,
            keeps=cache_never,
            timeout=MAX_SECONDS,
        )
        async def summary(
            context: ToolContext,
            text: Text = None,
            episode_ids: EpisodeIds = None,
            document_id: DocumentId = None,
            style: SummaryStyle = SummaryStyle.SHORT,
        ) -> dict[str, Any]:
            """Summarise a long text, earlier parts of conversations, or a whole document: give one of text,
            episode_ids and document_id. A model writes it, part by part where the text is long."""
            if sum(given is not None for given in (text, episode_ids, document_id)) != 1:
                raise InvalidInput("give one of text, episode_ids and document_id")

            def read(connection: Connection) -> tuple[str, list[Passage]]:
                if episode_ids is not None:
                    return "a conversation", _said(connection, context, episode_ids)
                if document_id is not None:
                    return _document(connection, context, document_id)
                return "a text", [Passage(each) for each in (text or "").split("\n\n")]

            what, passages = await answer_for_model(self._store.read_rows(read))
            parts, is_whole = await asyncio.to_thread(parts_of, passages)
            if not parts:
                raise ToolFailed("there are no words to summarise")
            tasks = [_task(what, part, number, len(parts), style) for number, part in enumerate(parts, 1)]
            if context.caller.run_id is None:
                found = await self._ask(context, tasks)
            else:
                found = await _delegated(context, tasks)
            return _result(parts, found, is_whole=is_whole)

        return summary

    async def _ask(self, context: ToolContext, tasks: Sequence[str]) -> list[PartSummary]:
        """Asks the user's default model, some tasks at a time."""
        user_id, free = context.caller.user_id, asyncio.Semaphore(CALLS_AT_ONCE)
        caller = await answer_for_model(
            self._store.read_rows(lambda connection: user_as_caller(connection, user_id))
        )

        async def ask(task: str) -> PartSummary:
            async with free:
                try:
                    end = await answer_for_model(self.ask_once(caller, task, INSTRUCTIONS))
                except ToolFailed as error:
                    return PartSummary(problem=error.message)
            return PartSummary(text=end.answer, problem=problem_of(end))

        asking = [asyncio.create_task(ask(task)) for task in tasks]
        try:
            return list(await asyncio.gather(*asking))
        finally:
            for each in asking:
                each.cancel()


async def _delegated(context: ToolContext, tasks: Sequence[str]) -> list[PartSummary]:
    """Has subagents without tools do the tasks."""
    assignments = tuple(Assignment(task=task, system_prompt=INSTRUCTIONS, tools=()) for task in tasks)
    strategy = DelegationStrategy.PARALLEL if len(tasks) > 1 else None
    outcomes = await context.actions.delegate(Delegation(assignments=assignments, strategy=strategy))
    return [
        PartSummary(text="" if outcome.end is None else outcome.end.answer, problem=outcome.problem)
        for outcome in outcomes
    ]


def _task(what: str, part: Summarized, number: int, count: int, style: SummaryStyle) -> str:
    is_part = f", part {number} of {count}" if count > 1 else ""
    place = f" ({part.place})" if part.place else ""
    return f"Summarise {what}{is_part}{place}. {_STYLES[style]}\n\n{fenced(part.text, '')}"


def _result(parts: Sequence[Summarized], found: Sequence[PartSummary], *, is_whole: bool) -> dict[str, Any]:
    """Raises ToolFailed if no part has a summary."""
    problems = [each.problem for each in found if each.problem is not None]
    if len(problems) == len(found):
        raise ToolFailed(problems[0])
    result: dict[str, Any] = {}
    if len(parts) == 1:
        result["summary"] = found[0].text
    else:
        result["parts"] = [
            {"part": number}
            | ({"place": part.place} if part.place else {})
            | ({"summary": each.text} if each.problem is None else {"error": each.problem})
            for number, (part, each) in enumerate(zip(parts, found, strict=True), 1)
        ]
    if not is_whole:
        result["note"] = f"the text is longer; only its first {len(parts)} parts are summarised"
    return result


def parts_of(passages: Iterable[Passage]) -> tuple[list[Summarized], bool]:
    """The text of the passages in parts of PART_TOKENS at most, and whether these are the whole text."""
    parts: list[Summarized] = []
    texts: list[str] = []
    places: list[str] = []
    size = 0

    def close() -> None:
        nonlocal size
        if texts:
            first_and_last = list(dict.fromkeys(each for each in (places[0], places[-1]) if each))
            parts.append(Summarized(text="\n\n".join(texts), place=" to ".join(first_and_last)))
        texts.clear()
        places.clear()
        size = 0

    for piece in _pieces(passages):
        tokens = text_tokens(piece.text) + 1
        if size + tokens > PART_TOKENS:
            close()
            if len(parts) == MAX_PARTS:
                return parts, False
        texts.append(piece.text)
        places.append(piece.place)
        size += tokens
    close()
    return parts, True


def _pieces(passages: Iterable[Passage]) -> Iterator[Passage]:
    """The passages that have words; a longer one than a part in several."""
    for passage in passages:
        rest = passage.text.strip()
        while rest:
            piece = beginning(rest, PART_TOKENS - 1)
            yield Passage(piece, passage.place)
            rest = rest[len(piece) :].lstrip()


def _said(connection: Connection, context: ToolContext, episode_ids: Sequence[str]) -> list[Passage]:
    """What was said in these episodes, in the order of time. Raises ToolFailed for an unknown one."""
    _, scopes = used_scopes(connection, context)
    rows = episodes_of(connection, scopes, episode_ids)
    unknown = set(episode_ids) - {row.uid for row in rows}
    if unknown:
        raise ToolFailed(f"no episode with the id {min(unknown)}; episode_retrieval lists them")
    return [
        Passage(f"{message.author}: {message.text}", message.sent_at.date().isoformat())
        for row in rows
        for message in shown_messages(connection, row, context)
    ]


_of_document = select(*documents.c).order_by(documents.c.id)
_passages = select(chunks).order_by(chunks.c.position, chunks.c.id)


def _document(connection: Connection, context: ToolContext, document_id: str) -> tuple[str, list[Passage]]:
    """The title of a document and its passages. Raises ToolFailed for one that may not be used here, or that
    is not indexed."""
    bases = usable_bases(connection, context)
    query = _of_document.where(documents.c.id == document_id, documents.c.base_id.in_(list(bases)))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise ToolFailed(f"no document with the id {document_id} can be used here")
    if row.status != EpisodeStatus.SYNCED.value:
        raise ToolFailed(f"the document {row.name} is not indexed: it is {row.status}")
    # Somebody else may have written into it what a model should do.
    context.metadata.is_untrusted = row.user_id != context.caller.user_id
    found = connection.execute(_passages.where(chunks.c.document_id == document_id))
    title = " ".join((row.title or row.name).split())
    return f"the document {title}", list(_passages_of(found))


def _passages_of(rows: Iterable[Row[Any]]) -> Iterator[Passage]:
    """The passages with their places; a heading stands once above those below it."""
    heading = ""
    for row in rows:
        above, heading = row.heading if row.heading != heading else "", row.heading
        place = " ".join(f"{name} {number}" for name, number in place_of_chunk(row).items())
        yield Passage("\n".join(filter(None, (above, row.columns, row.text))), place)
