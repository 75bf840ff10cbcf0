"""Rooms with their seats and members, and the foreign key of the messages of rooms.

No earlier version stored a room, so `messages.room_id` is empty and is created anew with its foreign key.
"""

# pyright: basic
import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"

ID = sa.String(36)


def parent(table: str, name: str, to: str, on_delete: str, *, nullable: bool = False) -> sa.Column:
    type_ = ID if to == "chat_rooms" else sa.Integer()
    key = sa.ForeignKey(f"{to}.id", name=op.f(f"fk_{table}_{name}"), ondelete=on_delete)
    return sa.Column(name, type_, key, nullable=nullable)


def optional(name: str, type_: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


def required(name: str, type_: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "chat_rooms",
        required("id", ID),
        parent("chat_rooms", "user_id", "users", "CASCADE"),
        parent("chat_rooms", "tenant_id", "tenants", "CASCADE"),
        required("title", sa.String(300)),
        required("task", sa.Text()),
        required("max_rounds", sa.Integer()),
        required("policy", sa.Text()),
        optional("stop", sa.Text()),
        optional("run_id", ID),
        required("current_round", sa.Integer()),
        required("created_at", sa.DateTime()),
        required("updated_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chat_rooms")),
    )
    op.create_index("ix_chat_rooms_user_id_id", "chat_rooms", ["user_id", "id"])
    op.create_index("ix_chat_rooms_tenant_id", "chat_rooms", ["tenant_id"])
    create_room_agents()
    op.create_table(
        "subject_members",
        required("subject_id", ID),
        parent("subject_members", "user_id", "users", "CASCADE"),
        parent("subject_members", "owner_id", "users", "CASCADE"),
        required("right", sa.String(10)),
        required("created_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("subject_id", "user_id", name=op.f("pk_subject_members")),
    )
    for name in ("user_id", "owner_id"):
        op.create_index(f"ix_subject_members_{name}", "subject_members", [name])
    change_messages()


def create_room_agents() -> None:
    op.create_table(
        "room_agents",
        required("id", sa.Integer()),
        parent("room_agents", "room_id", "chat_rooms", "CASCADE"),
        parent("room_agents", "agent_id", "agents", "SET NULL", nullable=True),
        required("name", sa.String(100)),
        required("name_key", sa.String(300)),
        optional("role", sa.String(500)),
        parent("room_agents", "provider_id", "llm_providers", "SET NULL", nullable=True),
        optional("model", sa.String(200)),
        optional("system_prompt", sa.Text()),
        required("color", sa.String(7)),
        required("turn_order", sa.Integer()),
        required("muted", sa.Boolean()),
        optional("tools", sa.Text()),
        optional("skills", sa.Text()),
        optional("temperature", sa.Double()),
        optional("max_tokens", sa.Integer()),
        optional("max_iterations", sa.Integer()),
        optional("thinking_enabled", sa.Boolean()),
        optional("fallbacks", sa.Text()),
        required("created_at", sa.DateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_room_agents")),
        sa.UniqueConstraint("room_id", "name_key", name=op.f("uq_room_agents_room_id_name_key")),
        sqlite_autoincrement=True,
    )
    for name in ("agent_id", "provider_id"):
        op.create_index(f"ix_room_agents_{name}", "room_agents", [name])


def change_messages() -> None:
    op.drop_index("ix_messages_room_id", "messages")
    op.drop_column("messages", "room_id")
    op.execute(
        "ALTER TABLE messages ADD COLUMN room_id VARCHAR(36) "
        "CONSTRAINT fk_messages_room_id REFERENCES chat_rooms (id) ON DELETE CASCADE"
    )
    op.add_column("messages", optional("seat_id", sa.Integer()))
    is_in_room = sa.text("room_id IS NOT NULL")
    op.create_index(
        "ix_messages_room_id_id", "messages", ["room_id", "id"],
        sqlite_where=is_in_room, postgresql_where=is_in_room,
    )  # fmt: skip
