"""Knowledge bases: collections of documents that users own, share with members or with the whole tenant.

Who may read, write and manage one, and which ones conversations, agents and rooms may name. Their documents
are in `features/knowledge/`.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import (
    ColumnElement,
    Exists,
    ForeignKey,
    Index,
    String,
    Text,
    and_,
    exists,
    or_,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.owned import Shared, SharedRow
from luxx.errors import NotAllowed, NotFound
from luxx.infra.clock import new_id
from luxx.infra.store.tables import Base, UtcDateTime

MAX_BASES = 200
"""Knowledge bases of one user."""

NAME_LENGTH = 200
NO_BASES = "[]"
"""The column of what names no knowledge base."""

KNOWLEDGE_SEARCH = "knowledge_search"
"""The name of the tool that searches them."""

MAX_NAMED = 20
"""Knowledge bases that a conversation, an agent or a room may name."""

MAX_ABOUT = 300
"""Characters of a description that a model is given."""

ATTACHED = (
    f"These knowledge bases are attached. Search them with {KNOWLEDGE_SEARCH} when their documents may "
    "answer a question:"
)


class BaseRight(StrEnum):
    """The caller's right to a knowledge base. Each includes the ones before it."""

    READ = "read"
    WRITE = "write"
    OWNER = "owner"


class KnowledgeBaseRow(SharedRow):
    """`is_shared`: everybody in the tenant reads it, and its administrators write. `project_id`: it is used
    in the conversations of this project. `deleted_at`: it is not there for anybody any more, and its rows are
    being deleted."""

    __tablename__ = "knowledge_bases"
    __table_args__ = (
        Index("uq_knowledge_bases_user_id_name", "user_id", "name", unique=True),
        Index("ix_knowledge_bases_tenant_id_is_shared", "tenant_id", "is_shared"),
        Index("ix_knowledge_bases_project_id", "project_id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    description: Mapped[str] = mapped_column(Text, default="")
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="SET NULL"))
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class BaseMemberRow(Base):
    """A user of the owner's tenant who may read or write a knowledge base. The database deletes it with
    either of the two."""

    __tablename__ = "base_members"

    base_id: Mapped[str] = mapped_column(
        ForeignKey("knowledge_bases.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[int] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    right: Mapped[str] = mapped_column(String(10))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


def _is_member(user_id: Any) -> Exists:
    is_of_user = exists().where(
        BaseMemberRow.base_id == KnowledgeBaseRow.id, BaseMemberRow.user_id == user_id
    )
    return is_of_user.correlate(KnowledgeBaseRow)


class SharedBases(Shared[KnowledgeBaseRow]):
    """The rules of `Shared`, with members."""

    def is_visible(self, tenant_id: Any, user_id: Any) -> ColumnElement[bool]:
        """A user's own rows, those shared in the tenant, and those that the user is a member of."""
        as_member = and_(KnowledgeBaseRow.tenant_id == tenant_id, _is_member(user_id))
        is_readable = or_(super().is_visible(tenant_id, user_id), as_member)
        return and_(is_readable, KnowledgeBaseRow.deleted_at.is_(None))

    def to_change(
        self,
        session: Session,
        caller: Caller,
        row_id: int | str,
        changes: msgspec.Struct | None,
        *,
        is_locked: bool = True,
    ) -> KnowledgeBaseRow:
        """As `Shared` has it; members change and delete nothing."""
        row = self.visible(session, caller, row_id, is_locked=is_locked)
        if row.user_id != caller.user_id and not row.is_shared:
            raise NotAllowed(f"you must own the knowledge base '{row.name}' for this")
        return super().to_change(session, caller, row_id, changes, is_locked=is_locked)


BASES = SharedBases(
    row=KnowledgeBaseRow,
    noun="knowledge base",
    limit=MAX_BASES,
    name_length=NAME_LENGTH,
    admin_fields=frozenset({"is_shared", "project_id"}),
    searched=(KnowledgeBaseRow.name, KnowledgeBaseRow.description),
)


def right_to(session: Session, caller: Caller, base: KnowledgeBaseRow) -> BaseRight:
    """The caller's right to a base that they may see."""
    return rights_to(session, caller, [base])[base.id]


def rights_to(session: Session, caller: Caller, bases: Sequence[KnowledgeBaseRow]) -> dict[str, BaseRight]:
    """The caller's rights to bases that they may see, by their ids."""
    others = [base.id for base in bases if base.user_id != caller.user_id]
    given: dict[str, str] = {}
    if others:
        query = select(BaseMemberRow.base_id, BaseMemberRow.right)
        query = query.where(BaseMemberRow.base_id.in_(others), BaseMemberRow.user_id == caller.user_id)
        given = dict(session.execute(query).all())
    return {base.id: _right(caller, base, given.get(base.id)) for base in bases}


def _right(caller: Caller, base: KnowledgeBaseRow, given: str | None) -> BaseRight:
    """`given`: the caller's right as a member."""
    if base.user_id == caller.user_id:
        return BaseRight.OWNER
    is_writer = (base.is_shared and caller.is_admin) or given == BaseRight.WRITE
    return BaseRight.WRITE if is_writer else BaseRight.READ


def find_base(
    session: Session,
    caller: Caller,
    base_id: str,
    right: BaseRight = BaseRight.READ,
    *,
    is_locked: bool = False,
) -> KnowledgeBaseRow:
    """A base that the caller has this right to. Raises NotFound or NotAllowed."""
    base = BASES.visible(session, caller, base_id, is_locked=is_locked)
    rights = list(BaseRight)
    if rights.index(right_to(session, caller, base)) < rights.index(right):
        needed = "own it" if right == BaseRight.OWNER else "have the right to write in it"
        raise NotAllowed(f"you may read the knowledge base '{base.name}'; you must {needed} for this")
    return base


KnowledgeIds = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=36)]],
    Meta(max_length=MAX_NAMED, description=f"ids of at most {MAX_NAMED} knowledge bases"),
]
_ids = msgspec.json.Decoder(list[str])


def check_named(session: Session, caller: Caller, named: Sequence[str]) -> str:
    """The knowledge bases that a conversation, agent or room names, as its column stores them, each once.
    Raises NotFound, naming the field, for one that the caller may not see."""
    wanted = list(dict.fromkeys(named))
    visible: set[str] = set()
    if wanted:
        query = select(KnowledgeBaseRow.id).where(KnowledgeBaseRow.id.in_(wanted), BASES.visible_to(caller))
        visible.update(session.scalars(query))
    for base_id in wanted:
        if base_id not in visible:
            field = f"$.knowledge[{named.index(base_id)}]"
            problem = "you have no knowledge base with this id"
            raise NotFound(problem, kind="knowledge_base_not_found", field=field)
    return msgspec.json.encode(wanted).decode()


def named_in(column: str) -> list[str]:
    """The ids in a stored column."""
    return [] if column == NO_BASES else _ids.decode(column)


def bases_of(session: Session, column: str, project_id: str | None) -> list[str]:
    """The ids of the knowledge bases that a conversation names in this column, and of those of its project,
    in a constant order."""
    named = named_in(column)
    if project_id is not None:
        of_project = select(KnowledgeBaseRow.id).where(KnowledgeBaseRow.project_id == project_id)
        named += session.scalars(of_project.order_by(KnowledgeBaseRow.id).limit(MAX_NAMED))
    return named


def attached_bases(session: Session, caller: Caller, named: Sequence[str]) -> str:
    """The text for a model that lists those of the named knowledge bases which the caller may see.

    Of bases of other people it has the names only, unless an administrator has shared them with the tenant:
    what they write about theirs must not become a part of somebody's system message.
    """
    columns = (KnowledgeBaseRow.name, KnowledgeBaseRow.description, KnowledgeBaseRow.user_id)
    query = select(KnowledgeBaseRow.id, *columns, KnowledgeBaseRow.is_shared)
    found = query.where(KnowledgeBaseRow.id.in_(named), BASES.visible_to(caller))
    rows = {row.id: row for row in session.execute(found)}
    lines: list[str] = []
    for base_id in dict.fromkeys(named):
        if (row := rows.get(base_id)) is None:
            continue
        about = row.description if row.user_id == caller.user_id or row.is_shared else ""
        name, about = (" ".join(text.split()) for text in (row.name, about))
        lines.append(f"- {name} ({base_id})" + (f": {about[:MAX_ABOUT]}" if about else ""))
    return "\n".join([ATTACHED, "", *lines]) if lines else ""
