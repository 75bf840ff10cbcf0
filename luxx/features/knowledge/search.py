"""What knowledge bases have for a text: arms rank chunks, and their ranks are added up, as in memory.

A chunk gets `weight / (rrf_k + rank)` from each arm that found it, and the weight of an arm that is missing
goes to the others. Callers give the scopes; only `visible_scopes` makes these.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Connection, Row, bindparam, select
from sqlalchemy.orm import Session

from luxx.features.knowledge.indexing import CHUNK_TEXTS, scope_word
from luxx.features.knowledge.rows import CHUNKS, chunks, documents, place_of_chunk
from luxx.features.memory.places import paid_by_run
from luxx.features.memory.retrieval import CANDIDATES, MAX_QUERY, Arm, fused
from luxx.features.memory.vectors.arm import Askable, Asked, NotAsked, VectorArm
from luxx.features.memory.vectors.source import PaidBy
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.ranked_search import rank
from luxx.infra.store.search_words import FUNCTION_WORDS, WordQuery, query_of, stems_of, words_of
from luxx.wire.source import MAX_SNIPPET, one_line

_FUNCTION_STEMS = frozenset(stems_of(sorted(FUNCTION_WORDS)))
_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]{1,100}|(?<=[。！？])")

_found = (
    select(
        chunks, documents.c.name, documents.c.title, documents.c.user_id, documents.c.base_id,
    )
    .join(documents, documents.c.id == chunks.c.document_id)
    .where(
        chunks.c.id.in_(bindparam("ids", expanding=True)),
        chunks.c.scope_id.in_(bindparam("scopes", expanding=True)),
    )
)  # fmt: skip


class FoundChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that fits a text. It has one place at most: a page, a slide, or a row of a table. `quote` is
    the line of it that fits best."""

    document_id: str
    base_id: str
    title: str
    text: str
    score: float
    page: int | UnsetType = UNSET
    slide: int | UnsetType = UNSET
    row: int | UnsetType = UNSET
    heading: str
    quote: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks, the best first, and who added their documents (None: their account was deleted). `asked`:
    whether they were searched by meaning, too."""

    items: list[FoundChunk]
    added_by: set[int | None]
    asked: Asked | NotAsked = NotAsked()


class ChunkSearch:
    """Searches by words, and by meaning where there are vectors. One per process."""

    def __init__(self, store: Store, config: MemoryConfig, vectors: VectorArm) -> None:
        self._store = store
        self._config = config
        self._vectors = vectors

    async def find(
        self,
        scopes_of: Callable[[Session], Sequence[int]],
        text: str,
        *,
        user_id: int,
        limit: int,
        run_id: str | None = None,
    ) -> Found:
        """What fits a text best in the scopes of `scopes_of`, which checks rights and raises what it wants;
        the user pays for the vector of the text."""
        asked: Asked | NotAsked = NotAsked()
        if self._vectors.is_on:

            def look(session: Session) -> tuple[Askable | NotAsked, PaidBy]:
                askable = self._vectors.askable(session, user_id, scopes_of(session), CHUNKS.subject)
                return askable, paid_by_run(session.connection(), run_id)

            askable, paid_by = await self._store.read(look)
            asked = await self._vectors.ask(askable, text, paid_by)

        def work(session: Session) -> Found:
            connection, scope_ids = session.connection(), scopes_of(session)
            more: list[Arm] = []
            if isinstance(asked, Asked):
                similar = self._vectors.similar(connection, CHUNKS.subject, scope_ids, asked)
                more.append(self._vectors.arm_of(similar))
            found = search_chunks(connection, scope_ids, text, self._config, limit=limit, more=more)
            return msgspec.structs.replace(found, asked=asked)

        return await self._store.read(work)


def search_chunks(
    connection: Connection,
    scope_ids: Sequence[int],
    text: str,
    config: MemoryConfig,
    *,
    limit: int,
    more: Sequence[Arm] = (),
) -> Found:
    """The chunks in these scopes that fit a text best; `more`: arms besides that of words, which rank ids of
    chunks."""
    query = text[:MAX_QUERY]
    arms = [_keyword_arm(connection, scope_ids, query, config.keyword_weight), *more]
    scores = fused([arm for arm in arms if arm.ranked and arm.weight > 0], config.rrf_k)
    best = sorted(scores, key=lambda id_: (scores[id_], id_), reverse=True)[:CANDIDATES]
    if not best:
        return Found(items=[], added_by=set())
    rows = {row.id: row for row in connection.execute(_found, {"ids": best, "scopes": list(scope_ids)})}
    kept = [rows[id_] for id_ in best if id_ in rows][:limit]
    asked = frozenset(stems_of(words_of(query)))
    return Found(
        items=[_item(row, scores[row.id], asked) for row in kept],
        added_by={row.user_id for row in kept},
    )


def _keyword_arm(connection: Connection, scope_ids: Sequence[int], query: str, weight: float) -> Arm:
    scopes = [scope_word(scope_id) for scope_id in scope_ids]
    hits = rank(
        connection, CHUNK_TEXTS, without_function_words(query_of(query)), scopes=scopes, limit=CANDIDATES
    ).hits
    return Arm(name="keyword", weight=weight, ranked=[(hit.id, "words") for hit in hits])


def without_function_words(query: WordQuery) -> WordQuery:
    """The query without words that most texts have, if it has others: in a base of few documents they may be
    rare, and would count as much as a name."""
    words = tuple(word for word in query.words if word.text not in _FUNCTION_STEMS)
    return msgspec.structs.replace(query, words=words) if words or query.required else query


def _item(row: Row[Any], score: float, asked: frozenset[str]) -> FoundChunk:
    line, quote = _best_line(row.text, asked)
    place = place_of_chunk(row)
    if "row" in place:
        place["row"] = min(place["row"] + line, row.last_row)
    return FoundChunk(
        document_id=row.document_id,
        base_id=row.base_id,
        title=row.title or row.name,
        text="\n".join(filter(None, (row.columns, row.text))),
        score=score,
        heading=row.heading,
        quote=quote,
        **place,
    )


def _best_line(text: str, asked: frozenset[str]) -> tuple[int, str]:
    """The first line of a text with the most words of the query, counted from 0, and its best sentence."""
    lines = text.split("\n")
    best = _best(lines, asked)
    sentences = _SENTENCE_END.split(lines[best])
    return best, one_line(sentences[_best(sentences, asked)], MAX_SNIPPET)


def _best(texts: Sequence[str], asked: frozenset[str]) -> int:
    counts = [len(asked.intersection(stems_of(words_of(text)))) for text in texts]
    return counts.index(max(counts))
