"""Prompts: saved texts with variables, which people insert into messages by a slash command.

A user sees their own prompts and those shared in the tenant. Only an administrator shares.
"""

import re
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.owned import Shared, SharedRow, SharedService, given_fields, view_of
from luxx.errors import InvalidInput
from luxx.infra.clock import new_id
from luxx.infra.store.engine import Store
from luxx.infra.strict_json import IN_LINE, LINE

MAX_PROMPTS = 500
"""Prompts of one user."""

MAX_VARIABLES = 20
"""Different variables in one prompt."""

NAME_LENGTH = 40


class PromptRow(SharedRow):
    """`name` is unique among the prompts of a user."""

    __tablename__ = "prompts"
    __table_args__ = (
        Index("uq_prompts_user_id_name", "user_id", "name", unique=True),
        Index("ix_prompts_tenant_id_is_shared", "tenant_id", "is_shared"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    title: Mapped[str] = mapped_column(String(200))
    description: Mapped[str] = mapped_column(Text)
    content: Mapped[str] = mapped_column(Text)


COMMAND = r"^[a-z0-9][a-z0-9-]*$(?!\n)"
IN_COMMAND = "lowercase letters, digits and hyphens, not beginning with a hyphen"
TEXT = r"[^\s\x00-\x1f\x7f]"
IN_TEXT = "text with a visible character"

PromptName = Annotated[
    str, Meta(min_length=1, max_length=NAME_LENGTH, pattern=COMMAND, description=IN_COMMAND)
]
PromptTitle = Annotated[str, Meta(max_length=200, pattern=LINE, description=IN_LINE)]
PromptDescription = Annotated[str, Meta(max_length=2_000)]
PromptContent = Annotated[str, Meta(min_length=1, max_length=50_000, pattern=TEXT, description=IN_TEXT)]

VARIABLE = re.compile(r"\{\{[ \t]*([^\s{}:]{1,40})[ \t]*(?::([^{}]{0,500}))?\}\}")
"""`{{name}}` or `{{name:default}}`. What has another form is text."""


class NewPrompt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` is the slash command. `content` may have variables: `{{name}}` or `{{name:default}}`."""

    name: PromptName
    title: PromptTitle = ""
    description: PromptDescription = ""
    content: PromptContent
    is_shared: bool = False


class PromptChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change."""

    name: PromptName | UnsetType = UNSET
    title: PromptTitle | UnsetType = UNSET
    description: PromptDescription | UnsetType = UNSET
    content: PromptContent | UnsetType = UNSET
    is_shared: bool | UnsetType = UNSET


class PromptVariable(Struct, frozen=True, kw_only=True):
    """`default` is what stands for the variable if nothing is given; null: something must be given."""

    name: str
    default: str | None


class PromptView(Struct, frozen=True, kw_only=True):
    """A prompt as the API shows it. `variables`: those of the content, in the order of their first use."""

    id: str
    user_id: int
    name: str
    title: str
    description: str
    content: str
    variables: list[PromptVariable]
    is_shared: bool
    is_own: bool
    created_at: datetime
    updated_at: datetime


def variables_of(content: str) -> list[PromptVariable]:
    """The variables of a text, each once; the first default that is given for a name counts."""
    defaults: dict[str, str | None] = {}
    for name, default in ((found[1], found[2]) for found in VARIABLE.finditer(content)):
        if defaults.get(name) is None:
            defaults[name] = default
    return [PromptVariable(name=name, default=default) for name, default in defaults.items()]


def _check_variables(values: NewPrompt | PromptChanges) -> None:
    if values.content is not UNSET and len(variables_of(values.content)) > MAX_VARIABLES:
        raise InvalidInput(f"may have at most {MAX_VARIABLES} different variables", field="$.content")


def _columns(values: NewPrompt | PromptChanges) -> dict[str, Any]:
    columns = given_fields(values)
    return {name: value.strip() if name == "title" else value for name, value in columns.items()}


PROMPTS = Shared(
    row=PromptRow,
    noun="prompt",
    limit=MAX_PROMPTS,
    name_length=NAME_LENGTH,
    new=NewPrompt,
    check=_check_variables,
    columns=_columns,
    searched=(PromptRow.name, PromptRow.title, PromptRow.description),
)


class PromptService(SharedService[PromptRow, PromptView]):
    """One per process."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, PROMPTS, _view)


def _view(row: PromptRow, caller: Caller) -> PromptView:
    return view_of(PromptView, row, caller, variables=variables_of(row.content))
