"""All parts of one server, wired: what the application shows and the command line uses.

The only wiring; no decision is made here. `open` and `close` are its life; its face is `app.py`'s.
"""

import asyncio
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import structlog
from sqlalchemy import text

from luxx import __version__
from luxx.api.http.sockets import Sockets
from luxx.api.http.streaming import StreamLimit, Streams
from luxx.api.routes.service import ServiceState
from luxx.app.build_tools import ToolSet
from luxx.app.server.maintenance import delete_old_run_logs, maintain_audit_log, sweep_transfers
from luxx.app.server.startup import tune_gc
from luxx.domain.accounts.administration import Administration, Operator
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.changes import AccountChanges
from luxx.domain.accounts.credentials import Passwords, TokenSigner
from luxx.domain.accounts.limits import RateLimits
from luxx.domain.accounts.rights import Offboarding
from luxx.domain.accounts.service import AccountService
from luxx.domain.accounts.settings import SettingsService
from luxx.domain.accounts.setup import PasswordSetup
from luxx.domain.accounts.tenants import TenantService, refuse_all_agents
from luxx.domain.accounts.tickets import TicketService
from luxx.domain.accounts.workspaces import Workspaces
from luxx.domain.audit.refusals import Refusals
from luxx.domain.conversations.branches import BranchService
from luxx.domain.conversations.projects import ProjectService
from luxx.domain.conversations.search import SearchService
from luxx.domain.conversations.service import ConversationService
from luxx.domain.files.attachments import AttachmentReader, PdfReader
from luxx.domain.files.service import FileService
from luxx.domain.files.upload import Uploads
from luxx.domain.skills.registry import log_problems
from luxx.domain.transfer.service import TransferService
from luxx.domain.usage.report import UsageService
from luxx.infra.bus.choosing import choose_bus
from luxx.infra.clock import new_id
from luxx.infra.config.schema import Config
from luxx.infra.data_permissions import SecuredPaths, secure, set_traversable
from luxx.infra.observe import Metrics, watch_event_loop
from luxx.infra.secrets import Vault, find_secret
from luxx.infra.store.engine import Store, open_engine, resolve_url, sqlite_file
from luxx.infra.store.lock import DataDirLock
from luxx.infra.store.upgrade import upgrade_database
from luxx.providers.addresses import AddressGuard
from luxx.providers.catalog import configured_catalog
from luxx.providers.client import ModelClient
from luxx.providers.discovery import connect_discovered_providers, has_local_provider
from luxx.providers.local.model import LocalModel
from luxx.providers.secret_check import check_and_reseal_keys
from luxx.providers.service import ProviderService
from luxx.providers.sharing import has_no_daily_limit, open_registration_warning, transfer_shared_providers
from luxx.providers.transport import Transport
from luxx.runs.admission import delete_runs, delete_runs_of
from luxx.runs.engine.driver import RunDriver
from luxx.runs.engine.processes import ProcessKind, ProcessService, this_process
from luxx.runs.log.replay import ReplayService
from luxx.runs.questions import QuestionService
from luxx.runs.service import RunService
from luxx.runs.stopping import RunStopper, cancel_runs_of
from luxx.runs.storage import StorageUse
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.notices import Notices
from luxx.runs.streams.relay import RunRelay
from luxx.runs.streams.watch import WAKE_SECONDS
from luxx.runs.turn.loop import ChatLoop
from luxx.runs.turn.resources import ResourceFinder
from luxx.wire.question import WhenAsked

logger = structlog.get_logger()


class Services:
    """All parts of one server process. Made cheaply; `open` does the work."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str] = os.environ,
        kind: ProcessKind = ProcessKind.SERVE,
    ) -> None:
        self.kind = kind
        self.config = config
        self.environ = environ
        self.data_dir = Path(config.data_dir)
        self.process = new_id()
        self.metrics = Metrics()
        url = resolve_url(config.database.url, self.data_dir)
        self._secure_data(sqlite_file(url))
        self.lock = DataDirLock(self.data_dir, sqlite_file(url))
        self.engine = open_engine(url, idle_timeout_seconds=config.runs.lease_seconds / 2)
        self.store = Store(self.engine, on_write=self.metrics.db_write_seconds.observe)
        secret = find_secret(config.app.secret_key, self.data_dir, is_shared=not self.store.is_sqlite)
        self.bus = choose_bus(self.process, self.engine, config.hub.url, secret, self.metrics)
        self.vault = Vault(secret, previous=config.app.previous_secret_keys)
        self.passwords = Passwords()
        self.workspaces = Workspaces(config.workspace.root, auto_create=config.workspace.auto_create)
        self._make_accounts(secret)
        self._make_tools()
        self.files = FileService(self.store, self.workspaces)
        self.uploads = Uploads(self.store, self.files, config.files)
        self.attachments = AttachmentReader(self.files, PdfReader(self.sandbox.readers.run))
        self.transfer = TransferService(self.store, self.data_dir, config.files, delete_runs=delete_runs)
        self.usage = UsageService(self.store, config.limits, config.tools.max_iterations)
        self.replay = ReplayService(self.store)
        self.searches = SearchService(self.store)
        self.hub = Hub()
        self.storage = StorageUse(self.store, config.limits.storage_mb_per_user)
        self.notices = Notices(self.store, self.bus, is_watched=self.hub.is_watched)
        self.tickets = TicketService(self.store, self.accounts)
        stream_limit = StreamLimit(config.limits.streams_per_user)
        self.sockets = Sockets(self.accounts, self.notices, stream_limit)
        self.streams = Streams(self.accounts, stream_limit)
        self.metrics.sockets.set_function(lambda: len(self.sockets))
        self.relay = RunRelay(self.hub, self.bus, self.store)
        self.metrics.sse_clients.set_function(lambda: self.hub.watchers)
        self.metrics.relayed_runs.set_function(lambda: self.relay.followed_runs)
        self._background: list[asyncio.Task[None]] = []
        self._is_drained = False

    def _secure_data(self, database: Path | None) -> None:
        workspace = self.config.workspace
        paths = SecuredPaths(data_dir=self.data_dir, database=database, workspaces=Path(workspace.root))
        secure(paths, makes_workspaces=workspace.auto_create)

    def _make_tools(self) -> None:
        tool_set = ToolSet(
            self.config, self.data_dir, self.store, self.workspaces, self.metrics, self.refusals
        )
        self.sandbox, self.registry, self.skill_registry = (
            tool_set.sandbox,
            tool_set.registry,
            tool_set.skill_registry,
        )
        self.executor, self.mcp = tool_set.executor, tool_set.mcp
        self.mcp_definitions = tool_set.mcp_definitions
        self.compositions, self.rules = tool_set.compositions, tool_set.rules

    def _make_accounts(self, secret: str) -> None:
        """What the command line needs too, in a house that is not opened."""
        config = self.config
        self.account_changes = AccountChanges(self.bus)
        self.refusals = Refusals(self.store)
        self.offboarding = Offboarding(cancel_runs_of, transfer_shared_providers)
        limits = RateLimits(config.limits)
        self.accounts = AccountService(
            self.store,
            passwords=self.passwords,
            tokens=TokenSigner(
                secret,
                access=timedelta(minutes=config.auth.access_minutes),
                refresh=timedelta(days=config.auth.refresh_days),
            ),
            limits=limits,
            workspaces=self.workspaces,
            config=config.auth,
            changes=self.account_changes,
            refusals=self.refusals,
        )
        self.password_setup = PasswordSetup(
            self.store,
            secret,
            passwords=self.passwords,
            limits=limits,
            changes=self.account_changes,
            refusals=self.refusals,
        )
        self.operator = Operator(
            self.store,
            passwords=self.passwords,
            workspaces=self.workspaces,
            offboarding=self.offboarding,
            stop_runs=RunStopper(self.store, None).stop_all_of,
        )

    async def open(self) -> None:
        """Migrates, makes the first user, finds providers, takes up what was running."""
        config = self.config
        log_problems(self.skill_registry)
        if self.store.is_sqlite:
            self.lock.take()
        await asyncio.gather(asyncio.to_thread(upgrade_database, self.engine), self._open_sandbox())
        await self.store.write(lambda session: check_and_reseal_keys(session, self.vault))
        # As root with Landlock, programs are another user, who finds Python's packages in there.
        set_traversable(self.data_dir, is_traversable=self.sandbox.backend_name == "landlock")
        await self.bus.open()
        await self.relay.open()
        await self.transfer.open()
        self._wire_providers()
        self._wire_runs()
        self._wire_conversations()
        self._wire_account_services()
        if await self.operator.ensure_first_user(self.environ.get("LUXX_ADMIN_PASSWORD")):
            logger.info("first_user_made", username="admin")
        await connect_discovered_providers(self.store, self.vault, self.environ, config, self.local)
        await self._warn_of_open_registration()
        await self.run_driver.open()
        if (
            config.local.enabled
            and self.local.unavailable_reason() is None
            and await has_local_provider(self.store)
        ):
            self.local.start()
        self._background = [
            asyncio.create_task(self._keep_streams_alive()),
            asyncio.create_task(watch_event_loop(self.metrics)),
            asyncio.create_task(
                maintain_audit_log(self.store, self.refusals, days=self.config.runs.retention_days)
            ),
            asyncio.create_task(self.notices.keep_notifying()),
            asyncio.create_task(self.sockets.keep_checking()),
            asyncio.create_task(self.streams.keep_checking()),
            asyncio.create_task(delete_old_run_logs(self.store, days=self.config.runs.retention_days)),
        ]
        if not self.store.is_sqlite:
            self._background.append(asyncio.create_task(sweep_transfers(self.transfer)))
        self.mcp.open()
        tune_gc()

    async def _open_sandbox(self) -> None:
        await self.sandbox.open()
        await self.sandbox.readers.open()

    async def _warn_of_open_registration(self) -> None:
        auth, limits = self.config.auth, self.config.limits
        reason = await self.store.read(lambda session: open_registration_warning(session, auth, limits))
        if reason is not None and has_no_daily_limit(auth, limits):
            logger.warning(
                "registration_without_daily_limit",
                reason=f"{reason}; set limits.tokens_per_day, or auth.allow_registration to false",
            )

    def stop_admitting(self) -> None:
        """Admits nothing new, ends streams; clients go on elsewhere, or here after the next start."""
        if self.run_driver.is_open:
            logger.info("stopping", driven=len(self.run_driver.drives()))
        self.run_driver.stop_admitting()
        self.hub.close()

    async def drain(self) -> None:
        """Lets runs end for a while; the rest is handed over by `close`. There is one such while."""
        if not self._is_drained:
            self._is_drained = True
            await self.run_driver.drain(self.config.runs.grace_seconds)

    def end_drain(self) -> None:
        """Ends `drain` at once."""
        self.run_driver.end_drain()

    async def close(self) -> None:
        """Ends it; what is driven here goes on elsewhere, or after the next start."""
        self.stop_admitting()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.refusals.flush()
        await self.drain()
        await self.run_driver.close()
        await self.mcp.close()
        await self.sandbox.close()
        await self.transport.aclose()
        await self.local.stop()
        await self.relay.close()
        await self.bus.close()
        await asyncio.to_thread(self.release)

    def release(self) -> None:
        """Ends threads and connections; all that the command line needs after using a closed house."""
        self.executor.close()
        self.passwords.close()
        self.store.close()
        self.lock.release()

    def _wire_providers(self) -> None:
        config = self.config
        self.local = LocalModel(config.local, self.data_dir)
        guard = AddressGuard(self.store, config.providers.allow_private, internal=self.local.host_ports)
        self.transport = Transport(config.providers, guard)
        self.client = ModelClient(self.transport, config.providers)
        local = self.local if config.local.enabled else None
        catalog = configured_catalog(config.models)
        self.providers = ProviderService(
            self.store, self.vault, self.client, guard, local=local, catalog=catalog
        )
        self.settings = SettingsService(self.store, check_provider=self._check_provider)

    def _wire_runs(self) -> None:
        config, read_own_tools = self.config, self.compositions.read_own_tools
        finds = (
            self.providers,
            self.executor,
            self.workspaces,
            self.replay,
            read_own_tools,
            self.skill_registry,
        )
        self.loop = ChatLoop(
            store=self.store,
            hub=self.hub,
            client=self.client,
            executor=self.executor,
            resources=ResourceFinder(*finds),
            engine=lambda: self.run_driver,
            max_iterations=config.tools.max_iterations,
            limits=config.limits,
            metrics=self.metrics,
            decision_seconds=config.limits.question_timeout_seconds,
            notify=self.notices.notify,
            storage=self.storage,
            on_question=self._answer_covered_questions,
        )
        self.run_driver = RunDriver(
            self.store,
            self.loop.drive,
            self.bus,
            process=this_process(self.process, self.kind),
            lease_seconds=config.runs.lease_seconds,
            limits=config.limits,
            is_alone=self.store.is_sqlite,
            on_heartbeat=self._answer_due_questions,
        )
        self.runs = RunService(
            self.store,
            self.hub,
            self.run_driver,
            self.providers,
            self.registry,
            config.limits,
            self.attachments,
            self.notices.notify,
            read_own_tools,
            self.storage,
            WhenAsked(config.tools.when_asked),
        )

    def _wire_conversations(self) -> None:
        self.questions = QuestionService(
            self.store, self.hub, self.run_driver, self.executor, self.notices.notify, self.workspaces.path_of
        )
        self.processes = ProcessService(self.store)
        quota_mb = self.config.files.quota_mb
        self.branches = BranchService(self.store, quota_mb=quota_mb, delete_runs=delete_runs)
        self.projects = ProjectService(self.store)
        self.conversations = ConversationService(
            self.store,
            check_provider=self._check_provider,
            stop_run=self.runs.stop,
            delete_runs=delete_runs,
            delete_runs_of=delete_runs_of,
        )

    def _wire_account_services(self) -> None:
        self.tenants = TenantService(self.store, check_agent=refuse_all_agents)
        self.administration = Administration(
            self.store,
            passwords=self.passwords,
            workspaces=self.workspaces,
            changes=self.account_changes,
            offboarding=self.offboarding,
            stop_runs=RunStopper(self.store, self.run_driver).stop_all_of,
        )

    async def _check_provider(self, caller: Caller, provider_id: int) -> None:
        await self.providers.get(caller, provider_id)

    async def _answer_due_questions(self) -> None:
        await self.questions.answer_due()

    async def _answer_covered_questions(self, user_id: int) -> None:
        await self.questions.answer_covered(user_id)

    async def workspace_of(self, caller: Caller) -> Path:
        """The caller's directory, made where the config says so."""
        return await asyncio.to_thread(self.workspaces.prepare_if_enabled, caller.user_id)

    async def _keep_streams_alive(self) -> None:
        while True:
            await asyncio.sleep(WAKE_SECONDS)
            self.hub.wake_all()

    def service_state(self) -> ServiceState:
        """What the public routes tell."""

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
            mcp_servers=lambda: [one.state for one in self.mcp.statuses],
            metrics=self.metrics,
            is_metrics_public=self.config.observability.metrics_public,
            checks={"database": database, "engine": engine},
        )
