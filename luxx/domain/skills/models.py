"""The tables of skills: those of tenants and projects, their files, and changes of the system's."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import Base, UtcDateTime


class SkillRow(Base):
    """A skill of a tenant, or with a `project_id` of that project. All but `enabled`, `origin` and the review
    is read from its SKILL.md, which is one of the files of `digest`. `tools`, `tags` and `triggers` are JSON.

    `user_id`: who made it; null after that user was deleted. An ADMIN has reviewed the files of
    `reviewed_digest`.
    """

    __tablename__ = "skills"
    __table_args__ = (Index("ix_skills_tenant_id_project_id", "tenant_id", "project_id"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"), index=True)
    scope: Mapped[str] = mapped_column(String(10))
    name: Mapped[str] = mapped_column(String(64))
    display_name: Mapped[str | None] = mapped_column(String(100))
    description: Mapped[str] = mapped_column(Text)
    license: Mapped[str | None] = mapped_column(Text)
    category: Mapped[str | None] = mapped_column(String(100))
    version: Mapped[str | None] = mapped_column(String(100))
    tags: Mapped[str] = mapped_column(Text)
    trigger_type: Mapped[str] = mapped_column(String(10))
    triggers: Mapped[str] = mapped_column(Text)
    tools: Mapped[str | None] = mapped_column(Text)
    is_for_people: Mapped[bool] = mapped_column(default=False, server_default=false())
    warning: Mapped[str | None] = mapped_column(Text)
    enabled: Mapped[bool] = mapped_column()
    digest: Mapped[str] = mapped_column(String(64))
    origin: Mapped[str] = mapped_column(String(10))
    reviewed_digest: Mapped[str | None] = mapped_column(String(64))
    reviewed_by: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"), index=True)
    reviewed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SkillFileRow(Base):
    """A file of the skills of a tenant with this digest over all their files.

    `unused_since`: since when no skill has this digest. The files stay for the runs that began with them.
    """

    __tablename__ = "skill_files"

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    path: Mapped[str] = mapped_column(String(500), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    unused_since: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)


class TenantSkillConfigRow(Base):
    """A skill of the system that a tenant has disabled, or replaced by one of its own. `system_skill_key` is
    its name in the form in which names are compared."""

    __tablename__ = "tenant_skill_configs"

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    system_skill_key: Mapped[str] = mapped_column(String(64), primary_key=True)
    system_skill_name: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(10))
    override_skill_id: Mapped[str | None] = mapped_column(
        ForeignKey("skills.id", ondelete="CASCADE"), index=True
    )
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
