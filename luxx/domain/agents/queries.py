"""The rows of agents: who may use one, what a run takes from it, defaults of tenants."""

from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace
from sqlalchemy import Row, String, and_, bindparam, case, cast, func, or_, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant
from luxx.domain.agents.models import (
    TURN_SETTINGS,
    AgentChanges,
    AgentFallback,
    AgentRow,
    AgentView,
    Check,
    NewAgent,
    TurnColumns,
    TurnSettings,
)
from luxx.domain.owned import Shared, given_fields, view_of
from luxx.domain.routing.listing import ListedPart, use_rank
from luxx.domain.routing.matching import RoutedItem, Trigger, TriggerType
from luxx.domain.routing.uses import RoutedUseRow
from luxx.errors import AmbiguousName, Conflict, InvalidInput, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import first_given, keep_name, table_of
from luxx.wire.model_settings import MAX_ID, MemoryMode, PlanningMode, RoutingMode

COLORS = ("#2f6fde", "#0f8a6d", "#b4541a", "#8a3fb0", "#c2375b", "#4d7c0f", "#0e7490", "#a16207")
"""The color of an agent that names none, by its name."""

INTRODUCTION = files("luxx.domain.agents").joinpath("prompt.md").read_text("utf-8").strip()

MOST_ROUTED = 1_000
"""Agents of one caller that requests are matched with."""

decode_names = msgspec.json.Decoder(list[str]).decode
decode_fallbacks = msgspec.json.Decoder(list[AgentFallback]).decode
decode_checks = msgspec.json.Decoder(list[Check]).decode
decode_triggers = msgspec.json.Decoder(list[Trigger]).decode
_ids = msgspec.json.Decoder(list[str]).decode
_JSON_FIELDS = frozenset(
    {"tools", "skills", "fallbacks", "checks", "knowledge", "trigger_patterns", "mcp_servers"}
)
_STRIPPED = frozenset({"name", "role", "model", "display_name", "description"})


class AgentSettings(TurnSettings, frozen=True, kw_only=True):
    """What a run takes from its agent; None: the agent leaves it open. `system_prompt` includes the
    role.

    `lost_agent` and `lost_provider` are the names of an agent and a provider that were chosen and are gone
    (`infra/store/tables.py`). `chosen_by` is what chose the provider, for sentences; empty: the agent.
    `in_project`: the project of the task whose turns have the settings, not that of the agent.
    """

    id: int | None = None
    name: str = ""
    provider_id: int | None = None
    system_prompt: str | None = None
    fallbacks: list[AgentFallback] = []
    prompted_thinking: bool = False
    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    checks: list[Check] = []
    sliding_window: int | None = None
    memory: MemoryMode | None = None
    knowledge: list[str] = []
    mcp_servers: list[str] | None = None
    owner_id: int | None = None
    is_shipped: bool = False
    is_enabled: bool = True
    lost_agent: str | None = None
    lost_provider: str | None = None
    chosen_by: str = ""
    in_project: str | None = None


NO_AGENT = AgentSettings()

BeforeLoss = Callable[[Session, AgentRow, bool], None]
"""Called before others lose an agent: it is deleted (true), or its owner ends the sharing (false)."""


def before_agent_transfer(
    before_loss: BeforeLoss, session: Session, row: AgentRow, successor_id: int | None
) -> None:
    """Nobody but its owner keeps a shared agent that no successor takes over."""
    if successor_id is None:
        before_loss(session, row, False)
        keep_name(session.connection(), AgentRow, row.id, row.name, owner_id=row.user_id)
        end_default(session, row)


AGENTS = Shared(row=AgentRow, noun="agent", is_public=AgentRow.shipped_name.is_not(None), is_audited=True)
"""A user sees also the agents that come with Luxx. `core_services.py` adds what is before a transfer."""


def read_agent(session: Session, caller: Caller, agent_id: int) -> AgentSettings:
    """The settings of an agent that the caller may use, for a run. Raises NotFound, or Conflict for one that
    is disabled."""
    return checked_enabled(settings_of(AGENTS.visible(session, caller, agent_id)))


def checked_enabled(agent: AgentSettings) -> AgentSettings:
    """Raises Conflict for the agent of a run that is disabled."""
    if agent.is_enabled:
        return agent
    chosen_by = f" ({agent.chosen_by})" if agent.chosen_by else ""
    raise Conflict(
        f"the agent '{agent.name}'{chosen_by} is disabled; enable it, or choose another agent",
        kind="agent_disabled",
        detail={"agent_id": agent.id},
    )


def mcp_servers_of(row: AgentRow | Row[Any]) -> list[str] | None:
    """The MCP servers whose tools the agent has; None: its tools decide."""
    return None if row.mcp_servers is None else decode_names(row.mcp_servers)


def settings_of(row: AgentRow) -> AgentSettings:
    """The settings of an agent, for a run. The role stands before the system prompt."""
    role = row.role if row.shipped_name is None else ""
    return AgentSettings(
        id=row.id,
        name=row.name,
        provider_id=row.provider_id,
        system_prompt=prompt_of(row.name, role, row.system_prompt),
        fallbacks=decode_fallbacks(row.fallbacks),
        prompted_thinking=row.prompted_thinking,
        planning=row.planning,
        routing=row.routing,
        checks=decode_checks(row.checks),
        sliding_window=row.sliding_window,
        memory=row.memory,
        knowledge=_ids(row.knowledge),
        mcp_servers=mcp_servers_of(row),
        owner_id=row.user_id,
        is_shipped=row.shipped_name is not None,
        is_enabled=row.enabled,
        lost_provider=row.lost_provider,
        **turn_settings_in(row),
    )


_agents, _uses = table_of(AgentRow), table_of(RoutedUseRow)
_routed = (
    select(
        _agents.c.id, _agents.c.name, _agents.c.role, _agents.c.description, _agents.c.trigger_type,
        _agents.c.trigger_patterns, _agents.c.is_shared, _agents.c.shipped_name, _agents.c.enabled,
        _uses.c.uses,
    )
    .outerjoin(
        _uses,
        and_(
            _uses.c.tenant_id == bindparam("tenant"),
            _uses.c.kind == "agent",
            _uses.c.name == cast(_agents.c.id, String),
        ),
    )
    .where(
        AGENTS.is_visible(bindparam("tenant"), bindparam("user")),
        or_(_agents.c.project_id.is_(None), _agents.c.project_id == bindparam("project")),
    )
    .order_by(
        case((_agents.c.user_id == bindparam("user"), 0), else_=1),
        case((_agents.c.shipped_name.is_(None), 0), else_=1),
        _agents.c.id.desc(),
    )
    .limit(MOST_ROUTED)
)  # fmt: skip


def routed_agents(session: Session, caller: Caller, project_id: str | None = None) -> list[RoutedItem]:
    """The enabled agents of the caller as requests are matched with them: the own, the shared, the shipped;
    of those of projects only the ones of this project. Of several with one name the first counts, because a
    model chooses by name, also a disabled one."""
    found: dict[str, RoutedItem | None] = {}
    of_caller = {"tenant": caller.tenant_id, "user": caller.user_id, "project": project_id}
    for row in session.connection().execute(_routed, of_caller):
        item = RoutedItem(
            kind="agent",
            name=row.name,
            description=row.description or row.role,
            id=str(row.id),
            scope="system" if row.shipped_name is not None else "tenant" if row.is_shared else "user",
            trigger_type=TriggerType(row.trigger_type),
            triggers=tuple(decode_triggers(row.trigger_patterns)),
            uses=row.uses or 0,
        )
        found.setdefault(row.name.lower(), item if row.enabled else None)
    return [item for item in found.values() if item is not None]


def listed_agents(agents: Iterable[RoutedItem]) -> ListedPart:
    """What the system prompt says of the agents to which a model can delegate."""
    listed = tuple(agents)
    entries = tuple((one.name, " ".join(one.description.split())) for one in listed)
    ranks = tuple(use_rank(one.uses) for one in listed)
    return ListedPart(noun="agent", introduction=INTRODUCTION, entries=entries, ranks=ranks)


def with_knowledge(agent: AgentSettings, named: list[str]) -> AgentSettings:
    """The settings with the knowledge bases that a conversation or its project has, besides their own."""
    return replace(agent, knowledge=list(dict.fromkeys([*agent.knowledge, *named]))) if named else agent


def turn_settings_in(*rows: TurnColumns | Row[Any] | None) -> dict[str, Any]:
    """Each setting of turns from the first of these rows that has it, as arguments of a struct; None is no
    row."""
    values = first_given(*rows, names=TURN_SETTINGS)
    for name in ("tools", "skills"):
        if values[name] is not None:
            values[name] = decode_names(values[name])
    return values


def prompt_of(name: str, role: str, system_prompt: str) -> str | None:
    """The system prompt of an agent or a seat, with the role before it; None if both are empty."""
    introduction = f"You are {name}: {role}." if role else ""
    return "\n\n".join(part for part in (introduction, system_prompt.strip()) if part) or None


def agent_named(session: Session, caller: Caller, name: str) -> AgentRow:
    """The caller's agent of this name, else the shared one, else the shipped one.

    Raises NotFound, or AmbiguousName for several; letter case does not count, unless one alone has the very
    name.
    """
    rows = session.scalars(
        select(AgentRow)
        .where(AGENTS.visible_to(caller), func.lower(AgentRow.name) == name.strip().lower())
        .order_by(AgentRow.id.desc())
    ).all()
    own = [row for row in rows if row.user_id == caller.user_id]
    shared = [row for row in rows if row.shipped_name is None]
    matching = own or shared or list(rows)
    exact = [row for row in matching if row.name == name.strip()]
    matching = exact if len(exact) == 1 else matching
    if len(matching) > 1:
        listed = ", ".join(f"{row.name} ({row.id})" for row in matching[:10])
        problem = f"{len(matching)} agents are named {name.strip()[:100]!r}: {listed}; rename all but one"
        raise AmbiguousName(problem, detail={"ids": [row.id for row in matching[:10]]})
    if not matching:
        raise NotFound(
            f"there is no agent named {name[:100]!r}; GET /agents lists yours", kind="agent_not_found"
        )
    return matching[0]


def default_agent_id(session: Session, caller: Caller) -> int | None:
    """The default agent of the caller's tenant, if it has one. Raises Conflict if it had one that is gone."""
    query = select(Tenant.default_agent_id, Tenant.lost_default_agent).where(Tenant.id == caller.tenant_id)
    agent_id, lost = session.execute(query).one()
    if agent_id is None and lost is not None:
        raise Conflict(
            f"the default agent '{lost}' of your tenant was deleted or is no longer shared; choose an agent "
            "(agent_id; null for none), or ask an administrator to choose another default",
            kind="agent_not_found",
            detail={"lost": {"agent": lost}},
        )
    return agent_id


def check_default_agent(session: Session, tenant_id: int | None, agent_id: int) -> None:
    """Raises NotFound or InvalidInput unless everybody in the tenant may use the agent.

    For a tenant that does not exist yet, which is None, only a shipped agent is possible.
    """
    row = session.get(AgentRow, agent_id) if 0 < agent_id <= MAX_ID else None
    if row is None or (row.shipped_name is None and row.tenant_id != tenant_id):
        raise AGENTS.not_found(agent_id)
    if row.shipped_name is None and not row.is_shared:
        problem = f"the agent '{row.name}' is not shared with the tenant; share it first (is_shared)"
        raise InvalidInput(problem, kind="agent_not_shared", field="$.default_agent_id")


def end_default(session: Session, row: AgentRow) -> None:
    """No tenant keeps an agent as its default that its users can no longer use; it keeps the name."""
    session.execute(
        update(Tenant)
        .where(Tenant.default_agent_id == row.id)
        .values(default_agent_id=None, lost_default_agent=row.name)
    )


def agent_view(row: AgentRow, caller: Caller) -> AgentView:
    """An agent's row as the API shows it."""
    return view_of(
        AgentView,
        row,
        caller,
        fallbacks=decode_fallbacks(row.fallbacks),
        checks=decode_checks(row.checks),
        knowledge=_ids(row.knowledge),
        mcp_servers=mcp_servers_of(row),
        trigger_type=TriggerType(row.trigger_type),
        trigger_patterns=decode_triggers(row.trigger_patterns),
        is_shipped=row.shipped_name is not None,
        **turn_settings_in(row),
    )


def new_row(caller: Caller, name: str) -> AgentRow:
    """A row of the caller with a color; `set_fields` sets the others."""
    now = utc_now()
    return AgentRow(
        user_id=caller.user_id,
        tenant_id=caller.tenant_id,
        color=color_of(name),
        created_at=now,
        updated_at=now,
    )


def color_of(name: str) -> str:
    """One of COLORS, always the same for the same name."""
    return COLORS[crc32(name.strip().encode()) % len(COLORS)]


def set_fields(row: AgentRow, values: NewAgent | AgentChanges) -> list[str]:
    """Sets the given fields and returns their names. Checks nothing."""
    columns = given_fields(values)
    if columns.get("color", "") is None:
        del columns["color"]
    for name, value in columns.items():
        setattr(row, name, _column(name, value))
    if "provider_id" in columns and row.lost_provider is not None:
        row.lost_provider = None
        if "model" not in columns:
            row.model = None  # It belonged to the lost provider.
    return list(columns)


def _column(name: str, value: Any) -> Any:
    """The value of a field as the row stores it."""
    if value is None:
        return None
    if name == "fallbacks":
        value = [replace(each, model=each.model and each.model.strip()) for each in value]
    if name in _JSON_FIELDS:
        return msgspec.json.encode(value).decode()
    if name in _STRIPPED:
        return value.strip()
    return value.lower() if name == "color" else value
