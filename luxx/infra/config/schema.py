"""The structs of the server's configuration. `file.py` reads and checks it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

NonEmptyText = Annotated[str, Meta(min_length=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
CorsOrigin = Annotated[
    str,
    Meta(
        pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$(?!\n)",
        description="'*', or a scheme and a host such as https://app.example.org, without a path",
    ),
]
PublicUrl = Annotated[
    str,
    Meta(
        pattern=r"^(https?://[A-Za-z0-9.:\[\]-]+)?$(?!\n)",
        description="http:// or https:// and a host such as https://luxx.example.org, without a path",
    ),
]


class AppConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`port` 0 selects a free port. With an empty `secret_key` Luxx creates one in the data directory.
    `previous_secret_keys` decrypt older secrets and sign nothing."""

    secret_key: str = ""
    previous_secret_keys: list[str] = []
    debug: bool = False
    host: NonEmptyText = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000

    def __repr__(self) -> str:
        return f"AppConfig(debug={self.debug}, host={self.host!r}, port={self.port})"


class DatabaseConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`type` always matches the scheme of `url`. The repr omits `url`, which may contain a password."""

    type: Literal["sqlite", "postgresql"] = "sqlite"
    url: NonEmptyText = "sqlite:///./luxx.db"

    def __repr__(self) -> str:
        return f"DatabaseConfig(type={self.type!r})"


class WorkspaceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    root: NonEmptyText = "./workspaces"
    auto_create: bool = True


class LlmConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider that the first start stores in the database, if it has a key or a URL."""

    provider: str = ""
    api_key: str = ""
    api_url: str = ""
    model: str = ""

    def __repr__(self) -> str:
        return f"LlmConfig(provider={self.provider!r}, api_url={self.api_url!r}, model={self.model!r})"


class ToolRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The action for calls of `tool` with an argument that matches `pattern`; the last match wins."""

    tool: NonEmptyText
    action: Literal["allow", "ask", "deny"]
    pattern: str = "*"


class ToolLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resource limits of programs that `tool` starts for callers of `level`. Omitted limits do not change."""

    tool: NonEmptyText = "*"
    level: Annotated[int, Meta(ge=1, le=4)] | None = None
    seconds: PositiveFloat | None = None
    cpu_seconds: Annotated[float, Meta(ge=1)] | None = None
    memory_mb: Annotated[int, Meta(ge=16)] | None = None
    processes: PositiveInt | None = None
    open_files: Annotated[int, Meta(ge=64)] | None = None
    file_mb: PositiveInt | None = None
    disk_mb: PositiveInt | None = None
    output_kb: PositiveInt | None = None


class ToolsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enable_cache: bool = True
    cache_ttl: NonNegativeInt = 300
    max_workers: PositiveInt = 4
    max_iterations: PositiveInt = 10
    modules: list[str] = []
    timeout_seconds: PositiveFloat = 60
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = "auto"
    python: str = ""
    packages: list[str] = []
    prewarmed: NonNegativeInt = 4
    limits: list[ToolLimits] = []
    memory_per_user_mb: PositiveInt = 4096
    memory_reserve_mb: NonNegativeInt = 0
    ask_from: Literal["low", "medium", "high"] = "high"
    rules: list[ToolRule] = []
    web_allow_private: list[str] = []
    network_allow: list[str] = []
    when_asked: Literal["wait", "deny"] = "wait"


class LoopsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`times`: the round in which a call or a cycle of calls is held back that brings nothing new. `seconds`:
    only calls that ended at most so many seconds ago are compared; 0: all."""

    times: Annotated[int, Meta(ge=2, le=16)] = 3
    seconds: NonNegativeFloat = 0


class ContextConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a prompt becomes too long, and what is left out then. `trigger` is a share of the context window
    without the answer, `sliding_window` is a number of messages (0: none); the others are tokens."""

    trigger: Annotated[float, Meta(ge=0.5, le=0.95)] = 0.8
    max_tokens: Annotated[int, Meta(ge=1000)] = 200_000
    clear_keep: NonNegativeInt = 40_000
    clear_min: NonNegativeInt = 20_000
    protected_tools: list[NonEmptyText] = field(
        default_factory=lambda: ["activate_skill", "ask_clarification", "ask_decision", "todo_write"]
    )
    summary_tokens: Annotated[int, Meta(ge=500)] = 4_000
    sliding_window: Annotated[int, Meta(ge=0, le=10_000)] = 0


class McpServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that speaks the Model Context Protocol on its standard streams. The repr omits `env` (entries
    `NAME=value`) and the command, which may contain secrets."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,19}$(?!\n)")]
    command: Annotated[list[NonEmptyText], Meta(min_length=1, max_length=100)]
    tenant: NonEmptyText = "default"
    env: Annotated[
        list[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=[^\x00]*$")]], Meta(max_length=100)
    ] = []
    reads: list[NonEmptyText] = []
    workspace: str = ""
    trusted: bool = False
    level: Annotated[int, Meta(ge=1, le=4)] = 3
    start_seconds: Annotated[float, Meta(gt=0, le=600)] = 30
    call_seconds: Annotated[float, Meta(gt=0, le=3600)] = 60

    def __repr__(self) -> str:
        return f"McpServerConfig(name={self.name!r}, tenant={self.tenant!r})"


class McpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    servers: list[McpServerConfig] = []


class SkillsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative `directories` are relative to the data directory."""

    directories: list[str] = field(default_factory=lambda: ["skills"])


class LoggingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """0 means no limit for `connections_per_address` and `body_bytes_per_second`."""

    max_body_mb: PositiveFloat = 10
    head_seconds: PositiveFloat = 30
    body_idle_seconds: PositiveFloat = 60
    body_bytes_per_second: NonNegativeInt = 1000
    keep_alive_seconds: PositiveInt = 5
    connections: PositiveInt = 10_000
    connections_per_address: NonNegativeInt = 256
    allowed_hosts: list[str] = []
    cors_origins: list[CorsOrigin] = []
    trusted_proxies: list[str] = []
    public_url: PublicUrl = ""


class AuthConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow_registration: bool = True
    default_permission_level: Annotated[int, Meta(ge=1, le=4)] = 1
    access_minutes: PositiveFloat = 30
    refresh_days: PositiveFloat = 30
    password_cost: Annotated[int, Meta(ge=10, le=16)] = 12


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """0 means no limit. Exceptions: 0 of `queued_runs` and `queued_runs_per_user` disables the queue, 0 of
    `delegation_depth` disables delegation."""

    requests_per_minute: NonNegativeInt = 600
    logins_per_minute: NonNegativeInt = 10
    link_reads_per_minute: NonNegativeInt = 300
    concurrent_runs_per_user: NonNegativeInt = 20
    concurrent_runs: NonNegativeInt = 200
    queued_runs_per_user: NonNegativeInt = 100
    queued_runs: NonNegativeInt = 1000
    streams_per_user: NonNegativeInt = 100
    tokens_per_day: NonNegativeInt = 0
    level1_tokens_per_day: NonNegativeInt = 200_000
    cost_per_day: NonNegativeFloat = 0
    tokens_per_run: NonNegativeInt = 0
    cost_per_run: NonNegativeFloat = 0
    seconds_per_run: NonNegativeFloat = 0
    tool_calls_per_run: NonNegativeInt = 0
    delegation_depth: Annotated[int, Meta(ge=0, le=3)] = 2
    subagents_per_run: NonNegativeInt = 50
    storage_mb_per_user: NonNegativeInt = 2000
    question_timeout_seconds: NonNegativeInt = 300


class ProvidersConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow_private: list[str] = []
    connect_timeout_seconds: PositiveFloat = 10
    idle_timeout_seconds: PositiveFloat = 60
    retries: Annotated[int, Meta(ge=0, le=20)] = 3


class FilesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_upload_mb: PositiveFloat = 100
    quota_mb: PositiveFloat = 1000


class RunsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lease_seconds: Annotated[float, Meta(ge=1)] = 10
    grace_seconds: NonNegativeFloat = 5
    retention_days: PositiveInt = 90
    temporary_chat_minutes: Annotated[int, Meta(ge=1, le=10_080)] = 60


class HubConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Redis server that connects servers with one database. The repr omits `url` and its password."""

    url: str = ""

    def __repr__(self) -> str:
        return "HubConfig()"


EMBEDDED_EMBEDDINGS = "multilingual-e5-small"
"""The embedding model of the extra `embed`."""


class EmbeddingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that makes vectors of what is remembered, and its provider; no model: none are made. Without
    a provider it is the embedded one."""

    provider_id: PositiveInt | None = None
    model: Annotated[str, Meta(max_length=200)] = ""

    @property
    def is_embedded(self) -> bool:
        return self.provider_id is None and self.model == EMBEDDED_EMBEDDINGS

    @property
    def problem(self) -> str:
        """What is wrong with both together; empty if nothing is."""
        if self.is_embedded or (self.provider_id is None) == (not self.model):
            return ""
        return (
            "provider_id and model belong together; set both or none, "
            f"or only the model {EMBEDDED_EMBEDDINGS}, which is embedded"
        )


class MemoryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How facts are found and extracted. The weights are those of the ranks; a missing one's goes to the
    others. `extraction_model`: the model of the user's default provider that is asked; empty: its default
    model. `enable_reflexion`: whether it is asked twice (`auto`: about long batches). Smaller communities
    than `community_min_size` entities are left out; a larger `community_resolution` makes smaller ones."""

    vector_weight: NonNegativeFloat = 0.4
    keyword_weight: NonNegativeFloat = 0.3
    graph_weight: NonNegativeFloat = 0.3
    rrf_k: PositiveInt = 60
    top_k: Annotated[int, Meta(ge=1, le=50)] = 10
    dedupe_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.85
    embedding: EmbeddingConfig = EmbeddingConfig()
    extraction_model: str = ""
    enable_reflexion: bool | Literal["auto"] = "auto"
    community_min_size: Annotated[int, Meta(ge=2, le=1000)] = 3
    community_resolution: Annotated[float, Meta(gt=0, le=100)] = 1.0


class PatternsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How patterns are learned, where a tenant allows it. `wait_seconds` after the end of a run it is looked
    at: an answer that is regenerated meanwhile teaches nothing."""

    wait_seconds: NonNegativeFloat = 60.0


class ArtifactsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of artifacts. `max_pages` and `max_source_kb` of one version, `versions` kept of each artifact,
    `max_file_mb` of a file that is made of one, `cache_mb` of all such files that are kept. A file takes at
    most `render_seconds`; `concurrent_renders` are made at once."""

    max_pages: Annotated[int, Meta(ge=1, le=1000)] = 60
    max_source_kb: Annotated[int, Meta(ge=1, le=9_000)] = 500
    max_file_mb: Annotated[int, Meta(ge=1, le=500)] = 50
    versions: Annotated[int, Meta(ge=2, le=10_000)] = 50
    cache_mb: NonNegativeInt = 500
    render_seconds: PositiveFloat = 30
    concurrent_renders: PositiveInt = 2


class LocalConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    model_path: str | None = None
    threads: PositiveInt = 2


class DemoConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False


class ObservabilityConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metrics_public: bool = False


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Properties of the models whose names match `pattern`. Windows in tokens, prices in US dollars per
    million tokens; null means unknown."""

    pattern: NonEmptyText
    context_window: PositiveInt
    max_output: PositiveInt
    tools: bool = True
    thinking: bool = False
    images: bool = False
    structured: bool = False
    input_price: NonNegativeFloat | None = None
    output_price: NonNegativeFloat | None = None
    cached_input_price: NonNegativeFloat | None = None
    cache_write_price: NonNegativeFloat | None = None


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key with its default. `data_dir` comes from the command line, not from the file."""

    app: AppConfig = AppConfig()
    database: DatabaseConfig = DatabaseConfig()
    workspace: WorkspaceConfig = WorkspaceConfig()
    llm: LlmConfig = LlmConfig()
    tools: ToolsConfig = ToolsConfig()
    loops: LoopsConfig = LoopsConfig()
    context: ContextConfig = ContextConfig()
    mcp: McpConfig = McpConfig()
    skills: SkillsConfig = SkillsConfig()
    logging: LoggingConfig = LoggingConfig()
    server: ServerConfig = ServerConfig()
    auth: AuthConfig = AuthConfig()
    limits: LimitsConfig = LimitsConfig()
    providers: ProvidersConfig = ProvidersConfig()
    models: list[ModelConfig] = []
    files: FilesConfig = FilesConfig()
    runs: RunsConfig = RunsConfig()
    hub: HubConfig = HubConfig()
    memory: MemoryConfig = MemoryConfig()
    patterns: PatternsConfig = PatternsConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    local: LocalConfig = LocalConfig()
    demo: DemoConfig = DemoConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    data_dir: NonEmptyText = "./data"
