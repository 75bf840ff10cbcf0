"""What people write of a skill: a new one, changes of one, the SKILL.md that follows from it, and what the
audit log says of it."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.audit import Action, AuditEntry, Detail, record
from luxx.domain.routing.matching import TriggerPatterns, TriggerType
from luxx.domain.skills.document import (
    MAX_DESCRIPTION,
    MAX_LABEL,
    MAX_LABELS,
    MAX_NAME,
    SkillDocument,
    check_entries,
    has_front_matter,
    make_document,
    read_document,
    with_values,
)
from luxx.domain.skills.layers import ConfigAction
from luxx.domain.skills.models import SkillRow
from luxx.domain.skills.skill import SYSTEM_ID, SkillScope
from luxx.errors import InvalidInput
from luxx.tools.permissions.rules import MAX_ENTRIES

SkillName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Description = Annotated[str, Meta(min_length=1, max_length=MAX_DESCRIPTION)]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL)]
Content = Annotated[str, Meta(min_length=1, max_length=40 * 1024)]
Tools = Annotated[list[Annotated[str, Meta(min_length=1, max_length=500)]], Meta(max_length=MAX_ENTRIES)]
Tags = Annotated[list[Label], Meta(max_length=MAX_LABELS)]


class NewSkill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`content` is a whole SKILL.md, or the text below its front matter, which is then made of the fields.

    Of a whole SKILL.md the front matter counts; fields that it lacks are added to it.
    """

    name: SkillName
    description: Description
    scope: SkillScope
    content: Content
    project_id: Annotated[str, Meta(max_length=36)] | None = None
    display_name: Label | None = None
    trigger_type: TriggerType | None = None
    trigger_patterns: TriggerPatterns | None = None
    tools: Tools | None = None
    category: Label | None = None
    version: Label | None = None
    tags: Tags | None = None


class SkillChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays; null removes it. All but `enabled` is written into the SKILL.md, which ends a
    review."""

    name: SkillName | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    display_name: Label | UnsetType | None = UNSET
    trigger_type: TriggerType | UnsetType | None = UNSET
    trigger_patterns: TriggerPatterns | UnsetType | None = UNSET
    tools: Tools | UnsetType | None = UNSET
    category: Label | UnsetType | None = UNSET
    version: Label | UnsetType | None = UNSET
    tags: Tags | UnsetType | None = UNSET


_SAME = ("name", "description", "display_name", "trigger_type", "category", "version", "tags")


def front_changes(values: NewSkill | SkillChanges) -> dict[str, Any]:
    """The values as keys of the front matter. Raises InvalidInput."""
    given = {name: getattr(values, name) for name in _SAME}
    front = {name: _plain(value) for name, value in given.items() if value is not UNSET}
    if values.trigger_patterns is not UNSET:
        front["triggers"] = _plain(values.trigger_patterns)
    if values.tools is not UNSET:
        if values.tools is not None:
            _check_tools(values.tools)
        line = None if values.tools is None else " ".join(values.tools)
        front |= {"tools": None, "allowed-tools": line}
    return front


def _check_tools(tools: Sequence[str]) -> None:
    try:
        check_entries(tools)
    except InvalidInput as error:
        raise error.about("$.tools") from error


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def content_of(new: NewSkill) -> bytes:
    """The SKILL.md of a new skill. Raises InvalidInput."""
    fields = {name: value for name, value in front_changes(new).items() if value is not None}
    if not has_front_matter(new.content):
        more = {name: value for name, value in fields.items() if name not in _HEAD}
        head = {name: fields[name] for name in _HEAD if name in fields}
        return make_document({**head, "metadata": more or None}, new.content)
    content = new.content.encode("utf-8", "replace")
    document = read_document(content)
    lacking = {
        name: value
        for name, value in fields.items()
        if name not in ("name", "description") and _lacks(document, name)
    }
    return with_values(content, lacking) if lacking else content


_HEAD = ("name", "description", "allowed-tools")


def _lacks(document: SkillDocument, key: str) -> bool:
    if key == "allowed-tools":
        return document.allowed_tools is None
    if key == "triggers":
        return not document.trigger_patterns
    if key == "trigger_type":
        return document.trigger_type == TriggerType.HYBRID
    return not getattr(document, key)


def set_document(row: SkillRow, document: SkillDocument) -> None:
    """Writes what a SKILL.md says into the columns of its row."""
    for name in ("name", "display_name", "description", "license", "category", "version", "is_for_people"):
        setattr(row, name, getattr(document, name))
    row.trigger_type = document.trigger_type.value
    row.tags = _json(document.tags)
    row.triggers = _json(document.trigger_patterns)
    row.tools = None if document.allowed_tools is None else _json(document.allowed_tools)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def record_change(session: Session, caller: Caller, action: Action, row: SkillRow) -> None:
    """Adds what was done with a skill to the audit log."""
    detail = Detail(name=row.name, added=[row.digest])
    entry = AuditEntry(
        action=action, actor=caller.actor, target_type="skill", target_id=row.id, detail=detail
    )
    record(session, entry)


def record_config(session: Session, caller: Caller, name: str, action: ConfigAction | None) -> None:
    """Adds what a tenant did with a skill of the system to the audit log."""
    detail = Detail(name=name, kind=action.value if action else "enable")
    target = f"{SYSTEM_ID}{name}"
    entry = AuditEntry(
        action=Action.SKILL_CHANGE, actor=caller.actor, target_type="skill", target_id=target, detail=detail
    )
    record(session, entry)
