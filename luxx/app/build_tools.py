"""Constructs the tools of one server: registry, executor, sandbox, MCP, skills, compositions, rules."""

from pathlib import Path

from luxx.domain.accounts.tenants import ids_by_name, refuse_all_agents
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.audit import Refusals
from luxx.domain.conversations.service import own_project
from luxx.domain.files.tool_files import FigureService, quota_hooks
from luxx.domain.mcp.approval import Definitions
from luxx.domain.mcp.service import McpServers
from luxx.domain.skills.registry import read_skills
from luxx.domain.skills.tools import skill_tools
from luxx.infra.config.schema import Config
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import Store, sqlite_file
from luxx.tools.builtin import builtin_tools, program_tools
from luxx.tools.compositions.service import CompositionService
from luxx.tools.core import ToolRegistry
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import CallRecorder, EgressRecord
from luxx.tools.loading import installed_entry_points, load_modules
from luxx.tools.permissions.service import RuleService
from luxx.tools.sandbox.service import Sandbox

SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files of a SQLite database. The sandbox hides all of them from programs."""


class ToolSet:
    """The parts of a server that concern tools. Constructing them starts nothing; their own `open` does."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        store: Store,
        workspaces: Workspaces,
        metrics: Metrics,
        refusals: Refusals,
    ) -> None:
        self._store = store
        database = sqlite_file(store.engine.url)
        database_files = (
            [] if database is None else [Path(f"{database}{suffix}") for suffix in SQLITE_SUFFIXES]
        )
        self.sandbox = Sandbox(config.tools, data_dir, Path(config.workspace.root), database_files)
        self.sandbox.egress.on_ended = EgressRecord(store, refusals).record
        figures = FigureService(store, workspaces, config.files)
        self.registry = ToolRegistry(
            [
                *builtin_tools(config.tools, self.sandbox.readers.run),
                *program_tools(self.sandbox, figures.register_figures),
            ]
        )
        for hook in quota_hooks(workspaces.path_of, config.files):
            self.registry.hooks.add(hook)
        load_modules(self.registry, config.tools.modules, installed_entry_points(), store)
        self.skill_registry = read_skills(config.skills.directories, data_dir)
        for tool in skill_tools(self.skill_registry) if self.skill_registry.skills else []:
            self.registry.register(tool)
        call_recorder = CallRecorder(self.registry, metrics, refusals)
        self.executor = ToolExecutor(
            self.registry,
            config.tools,
            on_call=call_recorder.record,
            on_refused=call_recorder.record_refusal,
            is_sandboxed=lambda: self.sandbox.backend_name != "none",
        )
        self.mcp_definitions = Definitions(store)
        self.mcp = McpServers(
            config, self.sandbox, self.registry, self._tenant_ids, self.mcp_definitions.withheld
        )
        self.compositions = CompositionService(store, self.executor)
        self.rules = RuleService(
            store,
            self.executor,
            check_project=own_project,
            check_agent=refuse_all_agents,
            read_own_tools=self.compositions.read_own_tools,
        )

    async def _tenant_ids(self) -> dict[str, int]:
        return await self._store.read(ids_by_name)
