"""Exact search: all vectors of the visible scopes are compared with that of a question.

The vectors of a scope are kept in memory as a matrix. Each search first reads what was added since, and last
whether what it found is still stored, so its result is that of the database. numpy is loaded with the first
vector. There is no approximate index: it returns too few rows to scopes that are a small part of a table.
"""

import os
import struct
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, bindparam, func, select

from luxx.features.memory.vectors.models import SUBJECTS, EmbeddingRow
from luxx.infra.store.ranked_search import as_list, listed
from luxx.infra.store.tables import table_of

MAX_BYTES = 192 * 1024 * 1024
"""Of matrices in memory: 128,000 vectors of 384 numbers. Larger scopes are read at each search."""

READ_AT_ONCE = 4_000
"""Vectors that are read and compared at once."""

MOST_BLOCKS = 16
"""Parts of a matrix before they are put together; each read of new vectors adds one."""

WHOLE_SECONDS = 300.0
"""After this time a matrix is read anew, without the vectors that were deleted since."""

FOUND = 200
"""The most similar texts of a search, before other conditions leave some out."""

_vectors = table_of(EmbeddingRow)
_newest_id = select(func.max(_vectors.c.id)).where(_vectors.c.model_id == bindparam("model"))


@cache
def _stored(dialect: str) -> Select[int]:
    return select(_vectors.c.id).where(_vectors.c.id.in_(listed(dialect, "ids")))


class _Statements(msgspec.Struct, frozen=True):
    """`added`: the vectors of a scope after an id; `any`: a vector in one of these scopes."""

    added: Select[int, int, bytes]
    any: Select[int]


def _statements(subject: str) -> _Statements:
    column, is_of_model = _vectors.c[subject], _vectors.c.model_id == bindparam("model")
    added = (
        select(_vectors.c.id, column, _vectors.c.vector)
        .where(
            _vectors.c.scope_id == bindparam("scope"),
            is_of_model,
            _vectors.c.id > bindparam("after"),
            column.is_not(None),
            _vectors.c.vector.is_not(None),
        )
        .order_by(_vectors.c.id)
    )
    in_scopes = _vectors.c.scope_id.in_(bindparam("scopes", expanding=True))
    found = select(_vectors.c.id).where(in_scopes, is_of_model, column.is_not(None)).limit(1)
    return _Statements(added, found)


_of_subject = {name: _statements(name) for name in SUBJECTS}


class Similar(msgspec.Struct, frozen=True):
    """A text that is similar to a question: the id of its row, and the cosine."""

    subject_id: int
    cosine: float


def numpy() -> Any:
    """The module, loaded at the first call. Its products use one thread: on busy processors several threads
    wait for each other longer than one takes."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return import_module("numpy")


def packed(vector: Sequence[float]) -> bytes:
    """A vector as it is stored: float16 numbers, low byte first."""
    return struct.pack(f"<{len(vector)}e", *vector)


class _Key(NamedTuple):
    """Which vectors a matrix has."""

    subject: str
    model_id: int
    scope_id: int


@dataclass(slots=True)
class _VectorBlock:
    ids: Any
    subjects: Any
    matrix: Any


class _Compared(NamedTuple):
    """Vectors of a block with how similar they are to a question, as arrays."""

    cosines: Any
    ids: Any
    subjects: Any


@dataclass(slots=True)
class _KeptVectors:
    """The vectors of a scope. `until`: the newest id of the model when they were read."""

    blocks: list[_VectorBlock] = field(default_factory=list[_VectorBlock])
    until: int = 0
    read_at: float = field(default_factory=time.monotonic)
    used_at: float = 0.0

    @property
    def size(self) -> int:
        return sum(block.matrix.nbytes for block in self.blocks)


class VectorSearch:
    """One per process; its functions block, and several threads may call them. `subject` is the column of
    what is searched, one of `SUBJECTS`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[_Key, _KeptVectors] = {}
        self._lock = threading.Lock()

    def has_any(
        self, connection: Connection, subject: str, model_id: int, scope_ids: Collection[int]
    ) -> bool:
        """Whether one of these scopes has a vector of the model."""
        values = {"scopes": list(scope_ids), "model": model_id}
        return bool(scope_ids) and connection.execute(_of_subject[subject].any, values).first() is not None

    def nearest(
        self,
        connection: Connection,
        subject: str,
        model_id: int,
        scope_ids: Collection[int],
        vector: Sequence[float],
    ) -> list[Similar]:
        """The texts in these scopes that are most similar to the vector, of length 1, the best first."""
        keys = [_Key(subject, model_id, scope_id) for scope_id in scope_ids]
        found = self._compared(connection, model_id, keys, vector)
        ids = [id_ for _, id_, _ in found]
        dialect = connection.dialect.name
        stored = set(connection.scalars(_stored(dialect), {"ids": as_list(ids)})) if ids else set[int]()
        if len(stored) < len(ids) // 2:  # Deleted ones stand before others.
            self.forget(model_id)
            found = self._compared(connection, model_id, keys, vector)
            stored.update(id_ for _, id_, _ in found)
        return [Similar(row_id, cosine) for cosine, id_, row_id in found if id_ in stored]

    def _compared(
        self, connection: Connection, model_id: int, keys: Collection[_Key], vector: Sequence[float]
    ) -> list[tuple[float, int, int]]:
        np = numpy()
        wanted = np.asarray(vector, dtype=np.float32)
        newest = connection.scalar(_newest_id, {"model": model_id}) or 0
        best = [
            _best(np, block, block.matrix @ wanted)
            for key in keys
            for block in self._blocks(np, connection, key, newest, len(vector))
        ]
        return _in_order(np, best)

    def forget(self, model_id: int) -> None:
        """Frees the matrices of a model that is not used any more."""
        with self._lock:
            for key in [key for key in self._kept if key.model_id == model_id]:
                del self._kept[key]

    def _blocks(
        self, np: Any, connection: Connection, key: _Key, newest: int, dimensions: int
    ) -> Iterator[_VectorBlock]:
        now = time.monotonic()
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or now - kept.read_at > WHOLE_SECONDS:
                kept = _KeptVectors()
            blocks, after = list(kept.blocks), kept.until
        yield from blocks
        if after == newest:
            kept.used_at = now
            return
        added: list[_VectorBlock] = []
        size, is_kept = sum(block.matrix.nbytes for block in blocks), True
        values = {"scope": key.scope_id, "model": key.model_id, "after": after}
        for rows in connection.execute(_of_subject[key.subject].added, values).partitions(READ_AT_ONCE):
            block = _block_of(np, rows, dimensions)
            yield block
            size += block.matrix.nbytes
            is_kept = is_kept and size <= self._max_bytes
            if is_kept:
                added.append(block)
            else:
                added.clear()
        if is_kept:
            blocks += [block for block in added if len(block.ids)]
            blocks = [_joined(np, blocks)] if len(blocks) > MOST_BLOCKS else blocks
            self._keep(key, _KeptVectors(blocks=blocks, until=newest, read_at=kept.read_at, used_at=now))

    def _keep(self, key: _Key, kept: _KeptVectors) -> None:
        with self._lock:
            self._kept[key] = kept
            total = sum(each.size for each in self._kept.values())
            for other in sorted(self._kept, key=lambda key: self._kept[key].used_at):
                if total <= self._max_bytes:
                    break
                if other != key:
                    total -= self._kept.pop(other).size


def _block_of(np: Any, rows: Sequence[Any], dimensions: int) -> _VectorBlock:
    # A model that changed its dimensions at the same name is tested anew; its old vectors fit nothing.
    fitting = [row for row in rows if len(row[2]) == 2 * dimensions]
    matrix = np.frombuffer(b"".join(row[2] for row in fitting), dtype="<f2")
    return _VectorBlock(
        ids=np.fromiter((row[0] for row in fitting), dtype=np.int64, count=len(fitting)),
        subjects=np.fromiter((row[1] for row in fitting), dtype=np.int64, count=len(fitting)),
        matrix=matrix.reshape(-1, dimensions).astype(np.float32),
    )


def _joined(np: Any, blocks: Sequence[_VectorBlock]) -> _VectorBlock:
    return _VectorBlock(
        ids=np.concatenate([block.ids for block in blocks]),
        subjects=np.concatenate([block.subjects for block in blocks]),
        matrix=np.concatenate([block.matrix for block in blocks]),
    )


def _best(np: Any, block: _VectorBlock, cosines: Any) -> _Compared:
    """The most similar vectors of a block, in no order."""
    if len(cosines) <= FOUND:
        return _Compared(cosines, block.ids, block.subjects)
    places = np.argpartition(cosines, len(cosines) - FOUND)[-FOUND:]
    return _Compared(cosines[places], block.ids[places], block.subjects[places])


def _in_order(np: Any, compared: Sequence[_Compared]) -> list[tuple[float, int, int]]:
    """The cosine, id and subject of the most similar vectors of all blocks, the best first, newer ones first
    among equals."""
    if not compared:
        return []
    cosines, ids, subjects = (np.concatenate(arrays) for arrays in zip(*compared, strict=True))
    order = np.lexsort((ids, cosines))[::-1][:FOUND]
    return list(zip(cosines[order].tolist(), ids[order].tolist(), subjects[order].tolist(), strict=True))
