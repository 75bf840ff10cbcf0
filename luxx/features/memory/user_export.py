"""The memory of a user and of their projects in an export of all their data, and its import elsewhere.

Only what Luxx knows at the time: earlier wordings, changes and sources stay behind.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.backup.user_export import FeatureExport, ImportedIds
from luxx.errors import Conflict, InvalidInput, LuxxError
from luxx.features.memory.entities import NewEntity
from luxx.features.memory.facts import Author, FactWriter
from luxx.features.memory.scopes import USER_SCOPE, ScopeName, Scopes, stored_scope, visible_scopes
from luxx.features.memory.views import Fact, NewFact, Time, facts, read_facts, was_known
from luxx.wire.memory import FactOrigin, ScopeKind

READ_AT_ONCE = 500


class ExportedFact(NewFact, frozen=True, kw_only=True):
    """A fact with the scope `user`, or `project:N` with the position of the project in the file."""

    entities: list[NewEntity] = []
    created_at: Time
    trusted: bool = True


ExportedFacts = list[ExportedFact]
_COPIED = (
    "text", "category", "subject", "predicate", "object", "valid_at", "invalid_at", "pinned", "created_at",
    "trusted",
)  # fmt: skip


def read_memory(session: Session, caller: Caller, project_ids: Sequence[str]) -> ExportedFacts:
    """The facts of the user and of their projects, oldest first."""
    connection = session.connection()
    visible = visible_scopes(connection, caller)
    exported: ExportedFacts = []
    for written, name in _scope_names(project_ids).items():
        scopes = visible.only(name)
        exported += [_exported(fact, written) for fact in _known_facts(connection, scopes)]
    return exported


def _scope_names(project_ids: Sequence[str]) -> dict[str, ScopeName]:
    """The scopes as the file writes them."""
    projects = {
        f"project:{position}": ScopeName(ScopeKind.PROJECT, project_id)
        for position, project_id in enumerate(project_ids)
    }
    return {str(USER_SCOPE): USER_SCOPE, **projects}


def _known_facts(connection: Connection, scopes: Scopes) -> list[Fact]:
    query = select(facts.c.id).where(facts.c.scope_id.in_(scopes.ids), was_known(None))
    ids = connection.scalars(query.order_by(facts.c.id)).all()
    found: list[Fact] = []
    for start in range(0, len(ids), READ_AT_ONCE):
        found += read_facts(connection, scopes, ids[start : start + READ_AT_ONCE])
    return found


def _exported(fact: Fact, scope: str) -> ExportedFact:
    values = {name: getattr(fact, name) for name in _COPIED}
    entities = [{"name": entity.name, "type": entity.type} for entity in fact.entities]
    return msgspec.convert(
        {**values, "scope": scope, "entities": entities}, ExportedFact, from_attributes=True
    )


def add_memory(session: Session, caller: Caller, ids: ImportedIds, value: Any) -> list[str]:
    """Adds facts with the origin `import`; those that are remembered in the same words already are left out.
    Returns notes about what did not fit. Raises LuxxError for what no server has exported."""
    try:
        exported = msgspec.convert(value, ExportedFacts)
    except msgspec.ValidationError as error:
        raise LuxxError(f"the memory in it cannot be read ({error})") from error
    connection, writer = session.connection(), FactWriter()
    names = _scope_names(ids.projects)
    left_out = 0
    for written, name in names.items():
        wanted = [fact for fact in exported if fact.scope == written]
        if wanted:
            left_out += _add(connection, caller, writer, name, wanted)
    if any(fact.scope not in names for fact in exported):
        raise LuxxError("the memory in it belongs to a project that the file does not have")
    return [f"memory: {left_out} facts did not fit into the limit of a scope"] if left_out else []


def _add(
    connection: Connection, caller: Caller, writer: FactWriter, name: ScopeName, wanted: ExportedFacts
) -> int:
    """Adds the facts of one scope; returns how many did not fit."""
    scope = stored_scope(connection, visible_scopes(connection, caller), name)
    known = set(connection.scalars(select(facts.c.text).where(facts.c.scope_id == scope.id, was_known(None))))
    for position, fact in enumerate(wanted):
        if fact.text.strip() in known:
            continue
        author = Author(user_id=caller.user_id, origin=FactOrigin.IMPORT, is_trusted=fact.trusted)
        try:
            writer.add(connection, scope, fact, author, fact.created_at)
        except Conflict:
            return len(wanted) - position
        except InvalidInput as error:
            raise LuxxError(f"the memory in it is not valid: {error.message}") from error
    return 0


MEMORY_EXPORT = FeatureExport(name="memory", read=read_memory, add=add_memory)
