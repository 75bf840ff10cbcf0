"""The tables of the MCP servers that people add, and of the tools that these listed; and the structs of the
API.

Servers of the configuration have no rows. Not here: grants and clients of OAuth.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import BigInteger, ColumnElement, ForeignKey, Index, String, Text, false, text
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from luxx.infra.store.tables import Base, UtcDateTime
from luxx.infra.strict_json import IN_LINE, LINE


class ServerTransport(StrEnum):
    """How messages reach a server: `stdio` starts a program here, the others connect to a URL. `http` is
    Streamable HTTP."""

    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"
    WEBSOCKET = "websocket"


class Credential(StrEnum):
    """Who signs in at a server with OAuth: nobody, one person for all who use it, or each user."""

    NONE = "none"
    SHARED = "shared"
    PER_USER = "per_user"


class ServerScope(StrEnum):
    """Whose server it is: all users of the tenant have its tools, or the user who added it."""

    TENANT = "tenant"
    USER = "user"


class ServerStatus(StrEnum):
    """`stopped`: it is disabled, or has not been connected to yet. The next call of one of its tools starts
    or connects it, also after a failure. `needs_sign_in`, with the credential `none`: it refuses whom it does
    not know, so it needs another credential or a header."""

    READY = "ready"
    STARTING = "starting"
    STOPPED = "stopped"
    NEEDS_SIGN_IN = "needs_sign_in"
    FAILED = "failed"


def unique_where(table: str, columns: Sequence[str], condition: str) -> Index:
    """A unique index over the rows that fulfil a condition in SQL."""
    where = text(condition)
    name = f"uq_{table}_{'_'.join(columns)}"
    return Index(name, *columns, unique=True, sqlite_where=where, postgresql_where=where)


class McpServerRow(Base):
    """A server of a tenant, or with a `user_id` of that user. `args`, `reads` and `oauth` are JSON.

    `secrets` is sealed JSON: the environment, the headers and the client secret; empty if there are none.
    `revision` changes with everything that connections and definitions of tools depend on.
    """

    __tablename__ = "mcp_servers"
    __table_args__ = (
        unique_where("mcp_servers", ["tenant_id", "name"], "user_id IS NULL"),
        unique_where("mcp_servers", ["user_id", "name"], "user_id IS NOT NULL"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(20))
    transport: Mapped[str] = mapped_column(String(10))
    url: Mapped[str] = mapped_column(Text)
    command: Mapped[str] = mapped_column(Text)
    args: Mapped[str] = mapped_column(Text)
    reads: Mapped[str] = mapped_column(Text)
    credential: Mapped[str] = mapped_column(String(10))
    oauth: Mapped[str | None] = mapped_column(Text)
    secrets: Mapped[str] = mapped_column(Text)
    trusted: Mapped[bool] = mapped_column()
    level: Mapped[int] = mapped_column()
    enabled: Mapped[bool] = mapped_column()
    revision: Mapped[int] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class McpManifestRow(Base):
    """What a server listed when it was last asked, as JSON; null if it never did. With a `user_id` it is what
    that user has of a server at which each user signs in.

    `status` and `problem` are of the last attempt, so a server can have failed and still have tools.
    `is_stateful`: its connections keep a state between calls, so one process has them.
    """

    __tablename__ = "mcp_manifests"
    __table_args__ = (
        unique_where("mcp_manifests", ["server_id"], "user_id IS NULL"),
        unique_where("mcp_manifests", ["server_id", "user_id"], "user_id IS NOT NULL"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    server_id: Mapped[str] = mapped_column(ForeignKey("mcp_servers.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    tools: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[str | None] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(20))
    problem: Mapped[str] = mapped_column(Text)
    is_stateful: Mapped[bool] = mapped_column(default=False, server_default=false())
    checked_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CallState(StrEnum):
    """`waiting`: no process has taken the call; `asking`: the server has asked the user something."""

    WAITING = "waiting"
    RUNNING = "running"
    ASKING = "asking"
    ENDED = "ended"


class McpConnectionRow(Base):
    """The stateful connection to a server, of one user or of all. `owner`: the process that has it
    (`runs/engine/processes.py`); null: none. `fence` grows whenever a process takes it."""

    __tablename__ = "mcp_connections"

    id: Mapped[str] = mapped_column(String(100), primary_key=True)
    server_id: Mapped[str | None] = mapped_column(
        ForeignKey("mcp_servers.id", ondelete="CASCADE"), index=True
    )
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    owner: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int] = mapped_column(BigInteger)


class McpCallRow(Base):
    """A call over a connection, made for `user_id`; an empty `tool` lists the tools anew. The owner of the
    connection carries it out and writes `result` (a `CallEnd`), under the `fence` with which it began.

    `caller`: the process that waits for it. `is_repeated`: an owner was lost during the call, which was begun
    once more. `asked`: what the server asked the user last (an `AskedOfUser`); `answer`: the sealed answers
    by the id of their question, until the server gets them. Without a connection it is the state of a call
    that its server continues when it is made again.
    """

    __tablename__ = "mcp_calls"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    connection_id: Mapped[str | None] = mapped_column(
        ForeignKey("mcp_connections.id", ondelete="CASCADE"), index=True
    )
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    tool: Mapped[str] = mapped_column(Text)
    arguments: Mapped[str] = mapped_column(Text)
    is_read_only: Mapped[bool] = mapped_column()
    mirrors_arguments: Mapped[bool] = mapped_column()
    workspace: Mapped[str | None] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(10))
    fence: Mapped[int | None] = mapped_column(BigInteger)
    is_repeated: Mapped[bool] = mapped_column()
    is_cancelled: Mapped[bool] = mapped_column()
    caller: Mapped[str] = mapped_column(String(64))
    asked: Mapped[str | None] = mapped_column(Text)
    answer: Mapped[str | None] = mapped_column(Text)
    result: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)


def held_by(
    column: ColumnElement[int | None] | InstrumentedAttribute[int | None], user_id: int | None
) -> ColumnElement[bool]:
    """The condition on what one user has of a server; with None on what all users share."""
    return column.is_(None) if user_id is None else column == user_id


def connection_key(server_id: str, user_id: int | None) -> str:
    """The id of the row of a connection to a server that somebody added."""
    return server_id if user_id is None else f"{server_id} {user_id}"


ServerName = Annotated[
    str,
    Meta(
        max_length=20,
        pattern=r"^[a-z0-9][a-z0-9-]{0,19}$(?!\n)",
        description="at most 20 lower-case letters, digits and -, beginning with a letter or a digit",
    ),
]
ServerUrl = Annotated[str, Meta(max_length=2000, pattern=LINE, description=IN_LINE)]
Program = Annotated[str, Meta(max_length=4096, pattern=LINE, description=IN_LINE)]
Argument = Annotated[
    str, Meta(max_length=4096, pattern=r"^[^\x00]*$", description="text without the character NUL")
]
Arguments = Annotated[list[Argument], Meta(max_length=100)]
VariableName = Annotated[
    str,
    Meta(
        max_length=100,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)",
        description="letters, digits and _, not beginning with a digit",
    ),
]
HeaderName = Annotated[
    str,
    Meta(max_length=100, pattern=r"^[A-Za-z0-9_-]+$(?!\n)", description="letters, digits, - and _"),
]
HeaderValue = Annotated[
    str,
    Meta(
        max_length=4096, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$(?!\n)", description="plain ASCII"
    ),
]
Variables = Annotated[dict[VariableName, Argument], Meta(max_length=100)]
Headers = Annotated[dict[HeaderName, HeaderValue], Meta(max_length=100)]
ServerLevel = Annotated[int, Meta(ge=1, le=4)]
ProjectId = Annotated[str, Meta(max_length=36)]
Token = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4096,
        pattern=r"^[\x21-\x7e]+$(?!\n)",
        description="plain ASCII without spaces",
    ),
]


class OAuthClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client that was registered at the server's authorization server by hand. `scopes` None: those that
    the server asks for."""

    client_id: Token
    client_secret: Token | None = None
    scopes: Annotated[list[Token], Meta(max_length=100)] | None = None

    def __repr__(self) -> str:
        return f"OAuthClient({self.client_id!r})"


class NewMcpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`level` defaults to 3 for a server of the tenant, else to 2."""

    name: ServerName
    transport: ServerTransport
    url: ServerUrl = ""
    command: Program = ""
    args: Arguments = []
    reads: Arguments = []
    env: Variables = {}
    headers: Headers = {}
    credential: Credential = Credential.NONE
    oauth: OAuthClient | None = None
    scope: ServerScope = ServerScope.USER
    project_id: ProjectId | None = None
    trusted: bool = False
    level: ServerLevel | UnsetType = UNSET
    enabled: bool = True

    def __repr__(self) -> str:
        return f"NewMcpServer({self.name!r}, {self.transport})"


class McpServerChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change; `env`, `headers` and `oauth` are replaced as a whole. A new URL with
    another origin removes the headers and the client, unless the changes have new ones."""

    name: ServerName | UnsetType = UNSET
    url: ServerUrl | UnsetType = UNSET
    command: Program | UnsetType = UNSET
    args: Arguments | UnsetType = UNSET
    reads: Arguments | UnsetType = UNSET
    env: Variables | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET
    credential: Credential | UnsetType = UNSET
    oauth: OAuthClient | UnsetType | None = UNSET
    project_id: ProjectId | UnsetType | None = UNSET
    trusted: bool | UnsetType = UNSET
    level: ServerLevel | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def __repr__(self) -> str:
        return "McpServerChanges(…)"


class OAuthClientView(Struct, frozen=True, kw_only=True):
    """The client of a server, without its secret."""

    client_id: str
    scopes: list[str] | None
    has_secret: bool


class McpServerView(Struct, frozen=True, kw_only=True):
    """A server. Of one that the caller may not change, `command`, `args`, `reads`, `oauth`, and the names of
    variables and headers are empty, and `url` has no query. `tools`: the names of those that are offered.
    `owner`: the process that has the connection, where one has it for all.
    """

    name: str
    transport: ServerTransport
    url: str
    command: str
    args: list[str]
    reads: list[str]
    env_names: list[str]
    header_names: list[str]
    credential: Credential
    oauth: OAuthClientView | None
    scope: ServerScope
    project_id: str | None
    is_configured: bool
    is_editable: bool
    trusted: bool
    level: int
    enabled: bool
    status: ServerStatus
    problem: str
    output: str | None
    since: datetime | None
    tools: list[str]
    withheld: list[str]
    left_out: list[str]
    owner: str | None


class McpToolView(Struct, frozen=True, kw_only=True):
    """A tool as its server lists it. `tool_name`: its name for models and rules. `problem`: why it is not
    offered (`enabled` is false then), else empty."""

    server: str
    name: str
    tool_name: str
    description: str
    input_schema: dict[str, Any]
    read_only: bool
    enabled: bool
    problem: str


class McpServerStatus(Struct, frozen=True, kw_only=True):
    """What a server does. `authorization_url`: where the caller has to sign in, if that is needed now."""

    status: ServerStatus
    problem: str
    checked_at: datetime | None
    owner: str | None
    authorization_url: str | None = None
