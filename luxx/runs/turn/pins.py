"""The beginning of the prompts of a turn: the tools and the lists of skills and of knowledge bases as its
first call got them, and which texts of the skills these were.

A provider caches a prompt from its beginning, so these parts stay the same for all calls of a turn, although
a restart, an edited skill or an MCP server may have changed them meanwhile. They are stored by their hash,
with the start of the first tool calls: a turn that ends before makes no other request.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Connection, ForeignKey, String, Text, bindparam, delete, exists, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.skills.skill import SkillPin
from luxx.infra.store.tables import Base, table_of
from luxx.runs.models import RunRow, is_unended
from luxx.runs.turn.state import RunSpec
from luxx.wire.message import KeptList
from luxx.wire.run import Compression, InConversation
from luxx.wire.tool import ToolSpec
from luxx.wire.turn import TURN_LENGTH

TOOLS, SKILLS, CHANGES, KNOWLEDGE, TEXTS = "tools", "skills", "changes", "knowledge", "texts"


class PromptPartRow(Base):
    """A text that requests of several runs begin with."""

    __tablename__ = "prompt_parts"

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    text: Mapped[str] = mapped_column(Text)


class RunPromptPartRow(Base):
    """A part of the prompts of a turn, until its run has ended; `turn` is empty in a chat."""

    __tablename__ = "run_prompt_parts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[str] = mapped_column(String(TURN_LENGTH), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10), primary_key=True)
    tenant_id: Mapped[int] = mapped_column()
    sha256: Mapped[str] = mapped_column(String(64), index=True)


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of Luxx that the model is offered, the texts of the system message that list skills and
    agents, and knowledge bases, and the skills that the turn began with; None: it can activate none.
    `changes`: what stands behind the history of skills and agents that the list does not have."""

    tools: list[ToolSpec]
    skills: str = ""
    changes: str = ""
    knowledge: str = ""
    begun: list[SkillPin] | None = None


_parts, _run_parts, _runs = table_of(PromptPartRow), table_of(RunPromptPartRow), table_of(RunRow)
_dialects = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_insert_part = {name: insert(_parts).on_conflict_do_nothing() for name, insert in _dialects.items()}
_insert_run_part = {name: insert(_run_parts).on_conflict_do_nothing() for name, insert in _dialects.items()}
_of_turn = (
    select(_run_parts.c.kind, _parts.c.text)
    .join(_parts, (_parts.c.tenant_id == _run_parts.c.tenant_id) & (_parts.c.sha256 == _run_parts.c.sha256))
    .where(_run_parts.c.run_id == bindparam("run_id"), _run_parts.c.turn == bindparam("turn"))
)
_delete_of_ended = delete(_run_parts).where(~exists().where(_runs.c.id == _run_parts.c.run_id, is_unended))
_kept = (
    select(_parts.c.sha256)
    .where(
        _parts.c.tenant_id == bindparam("tenant"), _parts.c.sha256.in_(bindparam("hashes", expanding=True))
    )
    .with_for_update(read=True, key_share=True)
)
_is_unused = ~exists().where(
    _run_parts.c.tenant_id == _parts.c.tenant_id, _run_parts.c.sha256 == _parts.c.sha256
)
_unused = (
    select(_parts.c.tenant_id, _parts.c.sha256).where(_is_unused).with_for_update(of=_parts, skip_locked=True)
)
_delete_unused = delete(_parts).where(
    _parts.c.tenant_id == bindparam("tenant"), _parts.c.sha256 == bindparam("sha"), _is_unused
)

_encode = msgspec.json.Encoder().encode
_tools = msgspec.json.Decoder(list[ToolSpec])
_texts = msgspec.json.Decoder(list[SkillPin])


def store_pins(connection: Connection, run_id: str, turn: str, tenant_id: int, pins: Pins) -> None:
    """Stores the pins of a turn; those that it has stay."""
    texts = {TOOLS: _encode(pins.tools).decode()}
    others = ((SKILLS, pins.skills), (CHANGES, pins.changes), (KNOWLEDGE, pins.knowledge))
    texts |= {kind: text for kind, text in others if text}
    texts |= {} if pins.begun is None else {TEXTS: _encode(pins.begun).decode()}
    hashes = {kind: sha256(text.encode()).hexdigest() for kind, text in texts.items()}
    dialect = connection.dialect.name
    parts: list[dict[str, Any]] = [
        {"tenant_id": tenant_id, "sha256": hashes[kind], "text": text} for kind, text in texts.items()
    ]
    of_run: list[dict[str, Any]] = [
        {"run_id": run_id, "turn": turn, "kind": kind, "tenant_id": tenant_id, "sha256": hashed}
        for kind, hashed in hashes.items()
    ]
    wanted: dict[str, Any] = {"tenant": tenant_id, "hashes": list({*hashes.values()})}
    connection.execute(_insert_part[dialect], parts)
    # Another process may be deleting a text that was unused until now. Locked, it stays until the commit.
    while dialect != "sqlite" and len(connection.scalars(_kept, wanted).all()) < len(wanted["hashes"]):
        connection.execute(_insert_part[dialect], parts)
    connection.execute(_insert_run_part[dialect], of_run)


def read_pins(connection: Connection, run_id: str, turn: str) -> Pins | None:
    """The pins of a turn; None: it has made no tool calls yet."""
    texts = {row.kind: row.text for row in connection.execute(_of_turn, {"run_id": run_id, "turn": turn})}
    if TOOLS not in texts:
        return None
    return Pins(
        tools=_tools.decode(texts[TOOLS]),
        skills=texts.get(SKILLS, ""),
        changes=texts.get(CHANGES, ""),
        knowledge=texts.get(KNOWLEDGE, ""),
        begun=_texts.decode(texts[TEXTS]) if TEXTS in texts else None,
    )


def delete_unused_pins(connection: Connection) -> None:
    """Deletes the pins of runs that have ended, and the texts that no run has any more."""
    connection.execute(_delete_of_ended)
    # Locked first, then looked at again: a run may have begun to use a text that the first look found unused.
    if unused := connection.execute(_unused).all():
        connection.execute(_delete_unused, [{"tenant": row.tenant_id, "sha": row.sha256} for row in unused])


def kept_list(spec: RunSpec, pins: Pins, window: int | None) -> KeptList | None:
    """The list of skills and agents as the record of the answer keeps it for later prompts; None: as none."""
    digest = made_for(spec, pins.tools, window)
    is_kept = digest and isinstance(spec.request.origin, InConversation)
    return KeptList(text=pins.skills, made_for=digest) if is_kept else None


def made_for(spec: RunSpec, tools: Sequence[ToolSpec], window: int | None) -> str:
    """A digest of what a list of skills and agents is made for; empty: later prompts do not keep it."""
    request = spec.request
    if spec.turn.key or not isinstance(request.origin, InConversation | Compression):
        return ""
    names = [tool.name for tool in tools]
    values = (spec.user_id, window, request.system_prompt, request.skills, names)
    return sha256(_encode(values)).hexdigest()[:16]
