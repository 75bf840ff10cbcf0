"""All parts of one server process, constructed and connected.

`core_services.py` constructs the parts that work before `open`, `background.py` has the periodic jobs.
`application.py` makes the web application
of a `Services`.
"""

import asyncio
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import text

from luxx import __version__
from luxx.api.openai.models import ModelNames
from luxx.api.routes.service import ServiceState
from luxx.app.background import background_jobs
from luxx.app.core_services import SEALED_COLUMNS, CoreServices
from luxx.app.run_kinds import FAILURES, SIDE_WORKS, run_loaders
from luxx.app.startup import tune_gc
from luxx.domain.accounts.administration import Administration
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.tenants import TenantService
from luxx.domain.accounts.user_data import SettingsService
from luxx.domain.agents.document import store_shipped_agents
from luxx.domain.agents.queries import AGENTS, check_default_agent, default_agent_id
from luxx.domain.conversations.branches import BranchService
from luxx.domain.conversations.service import ConversationService
from luxx.domain.skills.registry import log_problems
from luxx.domain.usage.provider_tests import ProviderTests
from luxx.features.artifacts.new_page import PageRegeneration
from luxx.features.chats.next_prompt import NextPrompts
from luxx.features.chats.queue import ChatQueue
from luxx.features.chats.service import ChatService
from luxx.features.chats.side_runs import SideRuns
from luxx.features.chats.temporary import TemporaryChats
from luxx.features.chats.todos import TodoService
from luxx.features.knowledge.documents import DocumentService
from luxx.features.knowledge.rows import CHUNKS
from luxx.features.knowledge.running import Indexing
from luxx.features.memory.extraction.ingestion import Ingestion
from luxx.features.memory.extraction.resolution import EpisodeRows
from luxx.features.memory.vectors.background import EmbeddingWork
from luxx.features.memory.vectors.source import EmbeddingSource
from luxx.features.memory.vectors.status import EmbeddingReport
from luxx.features.memory.vectors.texts import FACTS
from luxx.features.patterns.learning import PatternLearning
from luxx.features.patterns.reuse import PatternReuse
from luxx.features.patterns.service import PatternService
from luxx.features.patterns.suggestion import suggest_pattern
from luxx.features.prompts import PromptService
from luxx.features.rooms.calls import RoomCallService
from luxx.features.rooms.document import RoomTransfer
from luxx.features.rooms.forking import RoomForks
from luxx.features.rooms.members import MemberService
from luxx.features.rooms.orchestration import RoomOrchestration
from luxx.features.rooms.running import RoomRunService
from luxx.features.rooms.seats import SeatService, copy_agent_to_seats
from luxx.features.rooms.service import RoomService
from luxx.features.tasks.checks import ReferenceChecker
from luxx.features.tasks.planning import Planner, settings_for
from luxx.features.tasks.proposals import PlanService
from luxx.features.tasks.running import TaskRunService
from luxx.features.tasks.schedule import TaskSchedule
from luxx.features.tasks.service import TaskService
from luxx.features.tasks.templates import TaskTemplateService
from luxx.infra.config.schema import Config
from luxx.infra.data_permissions import set_traversable
from luxx.infra.store.upgrade import upgrade_database
from luxx.providers.catalog import configured_catalog
from luxx.providers.choosing import check_tenant_default
from luxx.providers.client import ModelClient
from luxx.providers.demo.server import DemoServer, store_demo_provider
from luxx.providers.discovery import connect_discovered_providers, has_local_provider
from luxx.providers.embedding import EmbeddingClient
from luxx.providers.environment_keys import connect_environment_keys
from luxx.providers.local.embedder import Embedder
from luxx.providers.local.model import LocalModel
from luxx.providers.queries import check_and_reseal_keys, has_no_daily_limit, open_registration_warning
from luxx.providers.service import ProviderService
from luxx.providers.transport import Transport
from luxx.runs.admission import Admission
from luxx.runs.engine.driver import RunDriver, RunLoop
from luxx.runs.engine.processes import ProcessKind, ProcessService, this_process
from luxx.runs.log.failure import fail_run
from luxx.runs.questions import QuestionService
from luxx.runs.requests import RequestResolver
from luxx.runs.routing import RequestRouter
from luxx.runs.service import RunService, RunStopper, delete_runs, delete_runs_of
from luxx.runs.turn.context import LoadDrive, RunServices
from luxx.runs.turn.resources import ResourceFinder, TurnServices
from luxx.wire.run import RunKind, WhenAsked

WAITING_SECONDS = 15.0
"""How often a process starts runs for what waits without one: messages to extract facts from, and documents
to index; and deletes what is left of deleted knowledge bases."""

logger = structlog.get_logger()


class Services(CoreServices):
    """All parts of one server process. `open` migrates the database and starts the work, `close` ends it."""

    def __init__(
        self, config: Config, environ: Mapping[str, str] = os.environ, kind: ProcessKind = ProcessKind.SERVE
    ) -> None:
        super().__init__(config)
        self.kind = kind
        self.environ = environ
        self._background: list[asyncio.Task[None]] = []
        self._is_drained = False

    async def open(self) -> None:
        """Migrates the database, creates the first user, finds providers and resumes unfinished runs."""
        log_problems(self.skill_layers.folders)
        if self.store.is_sqlite:
            self.lock.take()
        await asyncio.gather(asyncio.to_thread(upgrade_database, self.engine), self._open_sandbox())
        await self.store.write(lambda session: check_and_reseal_keys(session, self.vault, SEALED_COLUMNS))
        await self.store.write(lambda session: store_shipped_agents(session, copy_agent_to_seats))
        # With Landlock as root, programs run as another user and load Python packages from this directory.
        set_traversable(self.data_dir, is_traversable=self.sandbox.backend_name == "landlock")
        await self.bus.open()
        await self.relay.open()
        await self.transfer.open()
        self._make_providers()
        self._make_runs()
        self._make_conversations()
        self._make_rooms()
        self._make_tasks()
        self._make_account_services()
        if await self.operator.ensure_first_user(self.environ.get("LUXX_ADMIN_PASSWORD")):
            logger.info("first_user_created", username="admin")
        found = self.store, self.vault, self.environ
        if not await connect_discovered_providers(*found, self.config, self.local):
            await connect_environment_keys(*found)
        await self._start_demo()
        await self._warn_of_open_registration()
        await self.run_driver.open()
        await self._start_local_model()
        self._background = [
            asyncio.create_task(job)
            for job in background_jobs(self, self.embedding_work, self.temporary_chats)
        ]
        self.mcp.open()
        await self.mcp_pool.open(self.run_driver.heartbeat, is_worker=self.kind is ProcessKind.WORKER)
        tune_gc()

    async def _open_sandbox(self) -> None:
        await self.sandbox.open()
        await self.sandbox.readers.open()

    async def _start_demo(self) -> None:
        is_enabled = self.config.demo.enabled
        if is_enabled:
            await self.demo.start()
        if self.kind is ProcessKind.SERVE:
            await self.store.write(lambda session: store_demo_provider(session, is_enabled=is_enabled))

    async def _start_local_model(self) -> None:
        is_available = self.config.local.enabled and self.local.unavailable_reason() is None
        if is_available and await has_local_provider(self.store):
            self.local.start()

    async def _warn_of_open_registration(self) -> None:
        auth, limits = self.config.auth, self.config.limits
        reason = await self.store.read(lambda session: open_registration_warning(session, auth, limits))
        if reason is not None and has_no_daily_limit(auth, limits):
            logger.warning(
                "registration_without_daily_limit",
                reason=f"{reason}; set limits.tokens_per_day, or auth.allow_registration to false",
            )

    def stop_admitting(self) -> None:
        """Accepts no new runs and ends the streams. Clients reconnect elsewhere or after a restart."""
        if self.run_driver.is_open:
            logger.info("stopping", driven=len(self.run_driver.drives()))
        self.run_driver.stop_admitting()
        self.hub.close()

    async def drain(self) -> None:
        """Waits up to `runs.grace_seconds` for runs to end; only the first call waits.

        `close` releases the runs that are left.
        """
        if not self._is_drained:
            self._is_drained = True
            await self.run_driver.drain(self.config.runs.grace_seconds)

    def end_drain(self) -> None:
        """Makes `drain` return at once."""
        self.run_driver.end_drain()

    async def close(self) -> None:
        """Ends all parts. Unfinished runs continue in another process or after the next start."""
        self.stop_admitting()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.notices.close()
        await self.refusals.flush()
        await self.drain()
        await self.run_driver.close()
        await self.mcp.close()
        await self.mcp_pool.close()
        await self.mcp_grants.close()
        await self.sandbox.close()
        await self.transport.aclose()
        await self.local.stop()
        await self.embedder.stop()
        await self.demo.stop()
        await self.relay.close()
        await self.bus.close()
        await asyncio.to_thread(self.release)

    def _make_providers(self) -> None:
        config = self.config
        guard, internal_keys = self.address_guard, self.internal_keys
        self.local = LocalModel(config.local, self.data_dir, internal_keys)
        self.embedder = Embedder(config.local, self.data_dir, internal_keys)
        self.demo = DemoServer(internal_keys)
        self.transport = Transport(config.providers, guard)
        self.client = ModelClient(self.transport, config.providers)
        local = self.local if config.local.enabled else None
        catalog = configured_catalog(config.models)
        self.providers = ProviderService(
            self.store, self.vault, self.client, guard, local=local, demo=self.demo, catalog=catalog
        )
        self.provider_tests = ProviderTests(self.store, self.providers, config.limits)
        self.settings = SettingsService(self.store, check_provider=self.providers.check_default)
        self.embedding_source = EmbeddingSource(
            self.store, self.providers, EmbeddingClient(self.transport, config.providers),
            config.memory.embedding, config.limits, self.embedder,
        )  # fmt: skip
        self.vector_arm.source = self.embedding_source
        kinds = (FACTS, CHUNKS)
        self.embedding_report = EmbeddingReport(self.embedding_source, kinds)
        self.embedding_work = EmbeddingWork(self.embedding_source, self.process_id, kinds)

    def _make_runs(self) -> None:
        self.run_services = RunServices(
            config=self.config,
            store=self.store,
            hub=self.hub,
            tools=self.tools,
            executor=self.executor,
            storage=self.storage,
            metrics=self.metrics,
            notify=self.notices.notify,
            fail_run=partial(fail_run, self.store, FAILURES),
        )
        # The functions: the driver and the questions are made after the loop that they need.
        turn_services = TurnServices(self.client, self._resource_finder(), engine=lambda: self.run_driver)
        requests = self._request_resolver()
        loaders = self._loaders(turn_services, requests)
        loop = RunLoop(
            self.run_services, loaders, on_question=lambda user_id: self.questions.answer_new(user_id)
        )
        self.run_driver = RunDriver(
            self.config, self.store, self.bus, this_process(self.process_id, self.kind), drive=loop.drive,
            fail_run=self.run_services.fail_run, on_heartbeat=lambda: self.questions.answer_due(),
        )  # fmt: skip
        self.runs = RunService(self.run_services, self.run_driver, self.subjects)
        self.admission = Admission(self.run_services, self.run_driver)
        self.chats = ChatService(self.admission, self.runs, requests, self.attachments)
        self.summary_tool.ask_once = self.chats.ask_once
        self.next_prompts = NextPrompts(self.chats, turn_services.resources)
        self.chat_queue = ChatQueue(self.chats, self.notices.notify_subject)
        self.todos = TodoService(self.chats, self.notices.notify_subject)
        self.page_regeneration = PageRegeneration(self.admission, self.artifacts, requests.resolve_turn)
        self.ingestion, indexing = Ingestion(self.admission), Indexing(self.admission)
        self.documents = DocumentService(
            self.store, self.files, self.uploads, indexing, self.embedding_source, self.config.files.quota_mb
        )
        learning = PatternLearning(self.admission, requests.resolve_turn, self.config.patterns.wait_seconds)
        side_runs = SideRuns(self.admission, requests.resolve_turn, SIDE_WORKS)
        for work in (self.chat_queue.start_due, side_runs.look, learning.look):
            self.run_driver.heartbeat.on_each_heartbeat(work)
        for work in (self.ingestion.start_due, indexing.start_due, self.base_deletion.finish_due):
            self.run_driver.heartbeat.on_each_heartbeat(work, seconds=WAITING_SECONDS)

    def _resource_finder(self) -> ResourceFinder:
        return ResourceFinder(
            self.providers, self.executor, self.workspaces, self.replay, self.tools, self.skill_layers,
            self.skill_places, self.tool_images.read_images, self.tool_images.store_images,
            self.memory_recall,
        )  # fmt: skip

    def _loaders(self, turn_services: TurnServices, requests: RequestResolver) -> Mapping[RunKind, LoadDrive]:
        resolve = requests.resolve_turn
        self.room_loader = partial(RoomOrchestration, resolve=resolve)
        references = ReferenceChecker(self.tools, self.skill_layers)
        patterns = self.request_router.patterns
        self.planner = Planner(resolve, references, self.providers, settings_for, patterns)
        return run_loaders(
            turn_services, resolve, planner=self.planner, load_room=self.room_loader,
            episodes=EpisodeRows(self.fact_writer, self.config.memory), memory=self.config.memory,
            pages=lambda: self.page_regeneration, reader=self.attachments.documents.process,
            embedding=self.embedding_source,
        )  # fmt: skip

    def _request_resolver(self) -> RequestResolver:
        skills, patterns = self.skill_layers, PatternReuse()
        self.request_router = RequestRouter(store=self.store, skills=skills, patterns=patterns)
        return RequestResolver(
            providers=self.providers,
            tools=self.tools,
            router=self.request_router,
            limits=self.config.limits,
            when_asked=WhenAsked(self.config.tools.when_asked),
        )

    def _make_conversations(self) -> None:
        self.prompts, self.patterns = PromptService(self.store), PatternService(self.store)
        self.questions = QuestionService(
            self.run_services, self.run_driver, self.workspaces.path_of, self.server_questions
        )
        self.processes = ProcessService(self.store)
        quota_mb = self.config.files.quota_mb
        self.branches = BranchService(self.store, quota_mb=quota_mb, delete_runs=delete_runs)
        self.conversations = ConversationService(
            self.store,
            check_provider=self._check_provider,
            use_agent=AGENTS.visible,
            default_agent=default_agent_id,
            stop_run=self.runs.stop,
            delete_runs=delete_runs,
            delete_runs_of=delete_runs_of,
            temporary_minutes=self.config.runs.temporary_chat_minutes,
        )
        self.temporary_chats = TemporaryChats(self.store, self.conversations, self.artifacts, self.runs.stop)

    def _make_rooms(self) -> None:
        self.seats = SeatService(self.store, unknown_names=self.agents.unknown_names)
        notify, stop, cancel = self.notices.notify_subject, self.runs.stop, self.run_driver.cancel
        ends = (self.streams.end_membership, self.notices.end_access)
        self.members = MemberService(self.store, on_ended=ends, cancel_run=cancel, notify=notify)
        self.rooms = RoomService(self.store, self.seats, stop, delete_runs=delete_runs, cancel_run=cancel)
        self.model_names = ModelNames(self.providers, self.agents, self.rooms)
        self.room_forks = RoomForks(self.store, quota_mb=self.config.files.quota_mb)
        self.room_transfer = RoomTransfer(self.store, self.rooms)
        self.room_runs = RoomRunService(self.admission, self.runs, self.room_loader, notify)
        self.room_calls = RoomCallService(self.admission)

    def _make_tasks(self) -> None:
        references = self.planner.references
        self.tasks = TaskService(self.store, references, stop_run=self.runs.stop, delete_runs=delete_runs)
        self.task_runs = TaskRunService(self.admission, self.runs, self.planner)
        self.run_driver.heartbeat.on_each_heartbeat(TaskSchedule(self.task_runs).start_due)
        self.plans = PlanService(self.admission, self.runs, self.planner)
        self.task_templates = TaskTemplateService(self.store, references, suggest_pattern)

    def _make_account_services(self) -> None:
        self.tenants = TenantService(self.store, check_default_agent, check_tenant_default)
        self.administration = Administration(
            self.account_resources,
            offboarding=self.offboarding,
            stop_runs=RunStopper(self.store, self.run_driver).stop_all_of,
        )

    async def _check_provider(self, caller: Caller, provider_id: int) -> None:
        await self.providers.get(caller, provider_id)

    async def workspace_of(self, caller: Caller) -> Path:
        """The caller's directory; created if workspace.auto_create is on."""
        return await asyncio.to_thread(self.workspaces.prepare_if_enabled, caller.user_id)

    def service_state(self) -> ServiceState:
        """The parts that the public routes report about."""

        async def database() -> object:
            return await self.store.read(lambda session: session.scalar(text("SELECT 1")))

        async def engine() -> object:
            if not self.run_driver.is_open:
                raise RuntimeError("the engine is closed")
            return True

        return ServiceState(
            bus=self.bus,
            version=__version__,
            database="sqlite" if self.store.is_sqlite else "postgresql",
            sandbox=self.sandbox.backend_name,
            sandbox_backends=self.sandbox.reports,
            document_readers=self.sandbox.readers.backend_name,
            mcp_servers=lambda: [status.state for status in self.mcp.statuses],
            metrics=self.metrics,
            is_metrics_public=self.config.observability.metrics_public,
            checks={"database": database, "engine": engine},
        )
