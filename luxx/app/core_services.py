"""The parts of a server that work before it is opened: database, accounts, tools, files.

The commands of `luxx user` use these parts alone. `container.py` adds what needs an open server.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from luxx.api.http.event_streams import StreamLimit, Streams
from luxx.api.http.websockets import Sockets
from luxx.domain.accounts.administration import Operator
from luxx.domain.accounts.api_keys import ApiKeyService
from luxx.domain.accounts.authentication import AccountResources, Authenticator, TicketService, TokenSigner
from luxx.domain.accounts.caller import Caller, RateLimits
from luxx.domain.accounts.passwords import Passwords
from luxx.domain.accounts.rights import AccountChanges, Offboarding
from luxx.domain.accounts.service import AccountService
from luxx.domain.accounts.setup import PasswordSetup
from luxx.domain.accounts.tenants import tenant_ids_by_name
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.agents.queries import AGENTS, before_agent_transfer
from luxx.domain.agents.service import AgentService, owner_of_rules
from luxx.domain.audit import Actor, Refusals
from luxx.domain.conversations.search import SearchService
from luxx.domain.conversations.search_index import SubjectReaders
from luxx.domain.conversations.service import ProjectService, own_project
from luxx.domain.files.attachments import AttachmentReader, DocumentReader
from luxx.domain.files.service import FileService
from luxx.domain.files.tool_files import ToolImages, quota_hooks
from luxx.domain.files.upload import Uploads
from luxx.domain.knowledge_bases import BASES
from luxx.domain.mcp.approval import McpDefinitions
from luxx.domain.mcp.connections import ServerPlaces
from luxx.domain.mcp.editing import McpEditor
from luxx.domain.mcp.models import McpServerRow
from luxx.domain.mcp.oauth.flows import McpSignIns
from luxx.domain.mcp.oauth.grants import McpGrants, is_signed_in
from luxx.domain.mcp.oauth.http import OAuthHttp
from luxx.domain.mcp.owners.service import ProcessLeases
from luxx.domain.mcp.pool import McpPool
from luxx.domain.mcp.registry import McpRegistry
from luxx.domain.mcp.search import searching_tools
from luxx.domain.mcp.service import McpServers, limits_of_servers
from luxx.domain.owned import Shared
from luxx.domain.skills.files import SkillCopies
from luxx.domain.skills.layers import SkillLayers, SkillTools
from luxx.domain.skills.registry import SkillDirectories
from luxx.domain.skills.service import SkillService
from luxx.domain.skills.skill import SkillSet
from luxx.domain.skills.tools import SkillPlaces, skill_tools
from luxx.domain.transfer.service import TransferService
from luxx.domain.usage.report import UsageService
from luxx.features.artifacts.files import ArtifactFiles
from luxx.features.artifacts.models import ArtifactRow, ArtifactVersionRow
from luxx.features.artifacts.rendering import MIB, ArtifactRendering
from luxx.features.artifacts.rows import bytes_of_user
from luxx.features.artifacts.service import ArtifactService
from luxx.features.artifacts.tools import ArtifactTools
from luxx.features.knowledge.deletion import BaseDeletion
from luxx.features.knowledge.search import ChunkSearch
from luxx.features.knowledge.service import KnowledgeService
from luxx.features.knowledge.summary import SummaryTool
from luxx.features.knowledge.tools import KnowledgeTools
from luxx.features.memory.extraction.episode_tool import episode_tool
from luxx.features.memory.facts import FactWriter
from luxx.features.memory.graph import GraphService
from luxx.features.memory.graph_tools import GraphTools
from luxx.features.memory.places import decided_by_memory
from luxx.features.memory.recall import MemoryRecall
from luxx.features.memory.service import MemoryService
from luxx.features.memory.tools import MemoryTools
from luxx.features.memory.vectors.arm import VectorArm
from luxx.features.patterns.service import PATTERNS
from luxx.features.prompts import PROMPTS
from luxx.features.rooms.models import ChatRoomRow
from luxx.features.rooms.queries import searched_rooms
from luxx.features.rooms.seats import copy_agent_to_seats
from luxx.features.shares.service import ShareService
from luxx.features.tasks.checks import ReferenceChecker
from luxx.features.tasks.models import TaskRow
from luxx.features.tasks.queries import searched_tasks
from luxx.features.tasks.templates import TASK_TEMPLATES
from luxx.features.tasks.tools import TaskTools
from luxx.infra.bus.core import Topic
from luxx.infra.bus.network import choose_bus
from luxx.infra.clock import new_id
from luxx.infra.config.schema import Config
from luxx.infra.data_permissions import DataDirLock, SecuredPaths, restrict_permissions
from luxx.infra.documents.render.process import RenderProcess
from luxx.infra.observe import Metrics
from luxx.infra.secrets import Vault, find_secret
from luxx.infra.store.engine import Store, open_engine, resolve_url, sqlite_file
from luxx.infra.store.search_words import SearchKind
from luxx.infra.store.tables import table_of
from luxx.providers.addresses import AddressGuard
from luxx.providers.queries import PROVIDERS, SealedColumn
from luxx.runs.cancel import cancel_runs_of
from luxx.runs.elicitation_answers import ServerQuestions
from luxx.runs.engine.processes import alive_process_ids, has_workers
from luxx.runs.log.replay import ReplayService
from luxx.runs.models import who_may_see
from luxx.runs.service import RunStopper, delete_runs
from luxx.runs.streams.hub import Hub, RunRelay
from luxx.runs.streams.notices import Notices
from luxx.runs.streams.sessions import SubjectTable
from luxx.runs.turn.run_rows import StorageUse
from luxx.tools.builtin import builtin_tools
from luxx.tools.builtin.programs import ProgramFiles, program_tools
from luxx.tools.compositions.service import CompositionService
from luxx.tools.core import ToolRegistry, ToolSet
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import CallOutputs, CallRecorder, EgressRecord
from luxx.tools.permissions.service import RuleService, has_project_rules
from luxx.tools.sandbox.service import Sandbox
from luxx.tools.service_tools import installed_entry_points, load_modules
from luxx.tools.sources import ToolSources
from luxx.wire.run import RunKind

SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files of a SQLite database. The sandbox hides all of them from programs."""

SUBJECT_READERS: SubjectReaders = {SearchKind.ROOM: searched_rooms, SearchKind.TASK: searched_tasks}

SEALED_COLUMNS = (SealedColumn(table_of(McpServerRow), "secrets"),)
"""What is encrypted besides the keys of providers."""

SHARED: tuple[Shared[Any], ...] = (
    PROVIDERS,
    replace(AGENTS, before_transfer=partial(before_agent_transfer, copy_agent_to_seats)),
    TASK_TEMPLATES,
    PROMPTS,
    PATTERNS,
    BASES,
)
"""What users share with their tenant. A successor takes providers over first: shared agents need them."""


class CoreServices:
    """Creates the parts in the order in which they need each other; starts no task and migrates nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.data_dir = Path(config.data_dir)
        self.process_id = new_id()
        self.metrics = Metrics()
        url = resolve_url(config.database.url, self.data_dir)
        self._restrict_data_permissions(sqlite_file(url))
        self.lock = DataDirLock(self.data_dir, sqlite_file(url))
        self.engine = open_engine(url, idle_timeout_seconds=config.runs.lease_seconds / 2)
        self.store = Store(self.engine, on_write=self.metrics.db_write_seconds.observe)
        secret = find_secret(config.app.secret_key, self.data_dir, is_shared=not self.store.is_sqlite)
        self.bus = choose_bus(self.process_id, self.engine, config.hub.url, secret, self.metrics)
        self.vault = Vault(secret, previous=config.app.previous_secret_keys)
        self.passwords = Passwords(cost=config.auth.password_cost)
        self.workspaces = Workspaces(config.workspace.root, auto_create=config.workspace.auto_create)
        self._make_accounts(secret)
        self._make_tools()
        self._make_tool_services()
        self.files = FileService(self.store, self.workspaces)
        self.uploads = Uploads(self.store, self.files, config.files)
        self.attachments = AttachmentReader(self.files, DocumentReader(self.sandbox.readers.run))
        self.transfer = TransferService(self.store, self.data_dir, config.files, delete_runs=delete_runs)
        self.usage = UsageService(self.store, config.limits, config.tools.max_iterations)
        self.replay = ReplayService(self.store)
        self.shares = ShareService(self.store)
        self.searches = SearchService(self.store, SUBJECT_READERS)
        self.artifact_files = ArtifactFiles(self.artifacts, self.rendering, self.uploads)
        self.tickets = TicketService(self.store, self.authenticator)
        self._make_streams()

    def _restrict_data_permissions(self, database: Path | None) -> None:
        workspace = self.config.workspace
        paths = SecuredPaths(data_dir=self.data_dir, database=database, workspaces=Path(workspace.root))
        restrict_permissions(paths, makes_workspaces=workspace.auto_create)

    def _make_accounts(self, secret: str) -> None:
        config = self.config
        self.account_changes = AccountChanges(self.bus)
        self.refusals = Refusals(self.store)
        self.account_resources = AccountResources(
            store=self.store,
            passwords=self.passwords,
            workspaces=self.workspaces,
            limits=RateLimits(config.limits),
            changes=self.account_changes,
            refusals=self.refusals,
        )
        self.offboarding = Offboarding(cancel_runs_of, transfer_shared)
        tokens = TokenSigner(
            secret,
            access=timedelta(minutes=config.auth.access_minutes),
            refresh=timedelta(days=config.auth.refresh_days),
        )
        self.authenticator = Authenticator(self.account_resources, tokens)
        self.accounts = AccountService(self.account_resources, tokens=tokens, config=config.auth)
        self.keys = ApiKeyService(self.account_resources)
        self.password_setup = PasswordSetup(self.account_resources, secret)
        self.operator = Operator(
            self.account_resources,
            offboarding=self.offboarding,
            stop_runs=RunStopper(self.store, None).stop_all_of,  # A command drives no runs itself.
        )

    def _make_tools(self) -> None:
        config, store = self.config, self.store
        database = sqlite_file(store.engine.url)
        database_files = [Path(f"{database}{suffix}") for suffix in SQLITE_SUFFIXES if database is not None]
        self.sandbox = Sandbox(config.tools, self.data_dir, Path(config.workspace.root), database_files)
        self.sandbox.egress.on_ended = EgressRecord(store, self.refusals).record
        self.fact_writer = FactWriter()
        self.graph = GraphService(store, self.data_dir)
        self.vector_arm = VectorArm(config.memory)
        self.chunk_search = ChunkSearch(store, config.memory, self.vector_arm)
        self.tool_images = ToolImages(store, self.workspaces, config.files)
        self._make_skills()
        program_files = ProgramFiles(self.tool_images.register_figures, self.skill_places.for_program)
        self.registry = ToolRegistry()
        self.registry.register(
            *builtin_tools(config.tools, self.sandbox.readers.run),
            *program_tools(self.sandbox, program_files),
            *MemoryTools(store, self.fact_writer, config.memory, self.vector_arm).all(),
            *GraphTools(store, self.graph).all(),
            episode_tool(store),
            *KnowledgeTools(self.chunk_search).all(),
            *searching_tools(),
            are_shipped=True,
        )
        for hook in quota_hooks(self.workspaces.path_of, config.files):
            self.registry.hooks.add(hook)
        load_modules(self.registry, config.tools.modules, installed_entry_points(), store)
        self.call_outputs = CallOutputs(store)
        call_recorder = CallRecorder(self.metrics, self.refusals)
        self.executor = ToolExecutor(
            self.registry,
            config.tools,
            on_call=call_recorder.record,
            on_refused=call_recorder.record_refusal,
            is_sandboxed=lambda: self.sandbox.backend_name != "none",
        )

        def on_cleared(process: str, user_id: bytes) -> None:
            self.executor.clear_cache(int(user_id))

        self.bus.subscribe(Topic.TOOL_CACHE, on_cleared)

    def _make_artifacts(self) -> None:
        limits = self.config.artifacts
        process = RenderProcess(
            self.sandbox.readers.run,
            seconds=math.ceil(limits.render_seconds),
            total=limits.concurrent_renders,
            max_file_bytes=limits.max_file_mb * MIB,
        )
        self.rendering = ArtifactRendering(self.store, process, limits)
        self.storage = StorageUse(self.store, self.config.limits.storage_mb_per_user, bytes_of_user)
        self.artifacts = ArtifactService(self.store, limits, self.storage, self.rendering)
        self.registry.register(*ArtifactTools(self.artifacts, self.rendering).all(), are_shipped=True)

    def _make_skills(self) -> None:
        self.skill_copies = SkillCopies(self.data_dir)
        directories = SkillDirectories(
            self.config.skills.directories, self.data_dir, self.skill_copies.keep_text
        )
        self.skill_layers = SkillLayers(directories, self.skill_copies, self.bus)
        self.skill_places = SkillPlaces(self.store, self.skill_copies, self.sandbox.shown_skill)

    def clear_tool_cache(self, user_id: int) -> int:
        """Removes the user's cached results at every server of the database; returns how many this process
        had. A server that misses the message keeps its own for `tools.cache_ttl` seconds."""
        self.bus.publish(Topic.TOOL_CACHE, str(user_id).encode())
        return self.executor.clear_cache(user_id)

    def _make_tool_services(self) -> None:
        self._make_mcp()
        self.shared_tools = ToolSources(
            self.registry,
            SkillTools(self.skill_layers, skill_tools(self.skill_places), self.registry),
            # A source that can have no tools would only be asked in vain.
            *([self.mcp] if self.config.mcp.servers else []),
            self.mcp_pool,
        )
        self.skills = SkillService(
            self.store, self.skill_layers, self.shared_tools, self.config.files.quota_mb
        )
        self.compositions = CompositionService(self.store, self.executor, self.shared_tools)
        self.tools = self.shared_tools.followed_by(self.compositions)
        task_tools = TaskTools(ReferenceChecker(self.tools, self.skill_layers))
        self.registry.register(*task_tools.all(self.store), are_shipped=True)
        self._make_artifacts()
        self.summary_tool = SummaryTool(self.store)
        self.registry.register(self.summary_tool.function(), are_shipped=True)
        self.agents = AgentService(
            self.store,
            self.tools,
            self.skill_layers,
            before_loss=copy_agent_to_seats,
            mcp_servers=self.mcp_registry.names,
        )
        self.projects = ProjectService(self.store, has_project_rules)
        self.base_deletion = BaseDeletion(self.store)
        self.knowledge = KnowledgeService(self.store, self.chunk_search, self.base_deletion)
        self.memory = MemoryService(self.store, self.fact_writer, self.data_dir)
        self.memory_recall = MemoryRecall(self.store, self.config.memory, self.vector_arm)
        self.rules = RuleService(
            self.store,
            self.tools,
            self.executor.judge,
            check_project=own_project,
            check_agent=owner_of_rules,
            decide_by_memory=decided_by_memory,
        )

    def _make_mcp(self) -> None:
        self.mcp_definitions = McpDefinitions(self.store)
        self.mcp = McpServers(
            self.config,
            self.sandbox,
            lambda: self.store.read(tenant_ids_by_name),
            self.mcp_definitions.compare_and_record,
            self.tool_images.store_images,
        )
        self.internal_keys: dict[str, str] = {}
        self.address_guard = AddressGuard(
            self.store, self.config.providers.allow_private, internal=self.internal_keys
        )
        oauth_http = OAuthHttp(self.address_guard)
        self.mcp_grants = McpGrants(self.store, self.vault, oauth_http)
        self.mcp_sign_ins = McpSignIns(self.store, self.vault, oauth_http, self.mcp_grants)
        places = ServerPlaces(
            sandbox=self.sandbox,
            root=Path(self.config.workspace.root),
            limits=limits_of_servers(self.config.tools.limits),
            guard=self.address_guard,
            vault=self.vault,
            grants=self.mcp_grants,
            public_url=self.config.server.public_url,
            store_images=self.tool_images.store_images,
        )
        leases = ProcessLeases(process=self.process_id, alive=alive_process_ids, has_workers=has_workers)
        self.mcp_pool = McpPool(self.store, self.bus, self.mcp_definitions, places, leases)
        self.server_questions = ServerQuestions(
            is_signed_in=is_signed_in, keep_values=self.mcp_pool.calls.asked.keep_values
        )
        self.mcp_registry = McpRegistry(self.store, self.mcp, self.mcp_pool, self.mcp_sign_ins)
        self.mcp_editor = McpEditor(self.store, self.mcp_pool, self.mcp_registry)

    async def tools_of(self, caller: Caller, names: Collection[str] | None = None) -> ToolSet:
        """The tools that exist for the caller; with names, at least those of them that exist."""
        return await self.store.read(lambda session: self.tools.for_caller(session, caller, names))

    async def skills_of(self, caller: Caller) -> SkillSet:
        """The skills of a call by hand."""
        return await self.store.read(lambda session: self.skill_layers.for_caller(session, caller))

    def _make_streams(self) -> None:
        self.hub = Hub()
        rooms, tasks, artifacts = table_of(ChatRoomRow), table_of(TaskRow), table_of(ArtifactRow)
        self.subjects = (
            SubjectTable(RunKind.ROOM, rooms, rooms.c.title),
            SubjectTable(RunKind.TASK, tasks, tasks.c.name),
            SubjectTable(
                RunKind.ARTIFACT, artifacts, artifacts.c.name,
                shared_by=artifacts.c.room_id, writings=table_of(ArtifactVersionRow),
            ),
        )  # fmt: skip
        self.notices = Notices(self.store, self.bus, is_watched=self.hub.is_watched, tables=self.subjects)
        self.relay = RunRelay(self.hub, self.bus, self.store)
        stream_limit = StreamLimit(self.config.limits.streams_per_user)
        self.sockets = Sockets(self.authenticator, self.notices, stream_limit)
        self.streams = Streams(
            self.authenticator,
            stream_limit,
            may_see=lambda runs: self.store.read(lambda session: who_may_see(session, runs)),
        )
        self.metrics.sockets.set_function(lambda: len(self.sockets))
        self.metrics.sse_clients.set_function(lambda: self.hub.watchers)
        self.metrics.relayed_runs.set_function(lambda: self.relay.followed_runs)

    def release(self) -> None:
        """Ends threads and database connections and releases the lock. May block."""
        self.executor.close()
        self.graph.close()
        self.passwords.close()
        self.store.close()
        self.lock.release()


def transfer_shared(session: Session, user_id: int, successor_id: int | None, actor: Actor) -> None:
    """Transfers what a user shares with the tenant to a successor, or ends the sharing."""
    for shared in SHARED:
        shared.transfer(session, user_id, successor_id, actor)
