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
from luxx.app.build_tools import Workshop
from luxx.app.server.maintenance import keep_audit, keep_logs, sweep_transfers
from luxx.app.server.startup import settle
from luxx.domain.accounts.administration import Administration, Operator
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.changes import AccountChanges
from luxx.domain.accounts.credentials import Passwords, Tokens
from luxx.domain.accounts.limits import Limits
from luxx.domain.accounts.rights import Departure
from luxx.domain.accounts.service import AccountService
from luxx.domain.accounts.settings import SettingsService
from luxx.domain.accounts.setup import PasswordSetup
from luxx.domain.accounts.tenants import TenantService, no_agents
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
from luxx.domain.skills.registry import tell_of
from luxx.domain.transfer.service import TransferService
from luxx.domain.usage.report import UsageService
from luxx.infra.bus.choosing import choose_bus
from luxx.infra.clock import new_id
from luxx.infra.config.schema import Config
from luxx.infra.data_permissions import DataPaths, secure, set_passable
from luxx.infra.observe import Metrics, watch_event_loop
from luxx.infra.secrets import Vault, find_secret
from luxx.infra.store.engine import Store, open_engine, resolve_url, sqlite_file
from luxx.infra.store.lock import DataDirLock
from luxx.infra.store.upgrade import bring_up
from luxx.providers.addresses import AddressGuard
from luxx.providers.catalog import configured_catalog
from luxx.providers.client import ModelClient
from luxx.providers.discovery import connect_what_is_there, has_local_provider
from luxx.providers.local.model import LocalModel
from luxx.providers.secret_check import take_secret
from luxx.providers.service import ProviderService
from luxx.providers.sharing import hand_over_shared, is_unlimited, open_registration
from luxx.providers.transport import Transport
from luxx.runs.admission import forget_runs, forget_runs_of
from luxx.runs.engine.driver import Durable
from luxx.runs.engine.processes import ProcessKind, ProcessService, this_process
from luxx.runs.log.replay import ReplayService
from luxx.runs.questions import QuestionService
from luxx.runs.service import RunService
from luxx.runs.stopping import RunStopper, cancel_runs_of
from luxx.runs.storage import StorageUse
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.notices import Notices
from luxx.runs.streams.relay import RunRelay
from luxx.runs.streams.watch import BEAT_SECONDS
from luxx.runs.turn.loop import ChatLoop
from luxx.runs.turn.resources import CrewFinder
from luxx.wire.question import WhenAsked

logger = structlog.get_logger()


class House:
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
        self.engine = open_engine(url, silence_seconds=config.runs.lease_seconds / 2)
        self.store = Store(self.engine, on_write=self.metrics.db_write_seconds.observe)
        secret = find_secret(config.app.secret_key, self.data_dir, is_shared=not self.store.is_sqlite)
        self.bus = choose_bus(self.process, self.engine, config.hub.url, secret, self.metrics)
        self.vault = Vault(secret, previous=config.app.previous_secret_keys)
        self.passwords = Passwords()
        self.workspaces = Workspaces(config.workspace.root, auto_create=config.workspace.auto_create)
        self._make_people(secret)
        self._make_tools()
        self.files = FileService(self.store, self.workspaces)
        self.uploads = Uploads(self.store, self.files, config.files)
        self.attachments = AttachmentReader(self.files, PdfReader(self.sandbox.readers.run))
        self.transfer = TransferService(self.store, self.data_dir, config.files, forget_runs=forget_runs)
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
        self.metrics.relayed_runs.set_function(lambda: self.relay.mirrors)
        self._background: list[asyncio.Task[None]] = []
        self._is_drained = False

    def _secure_data(self, database: Path | None) -> None:
        workspace = self.config.workspace
        paths = DataPaths(data_dir=self.data_dir, database=database, workspaces=Path(workspace.root))
        secure(paths, makes_workspaces=workspace.auto_create)

    def _make_tools(self) -> None:
        workshop = Workshop(
            self.config, self.data_dir, self.store, self.workspaces, self.metrics, self.refusals
        )
        self.sandbox, self.registry, self.shelf = workshop.sandbox, workshop.registry, workshop.shelf
        self.executor, self.mcp = workshop.executor, workshop.mcp
        self.mcp_definitions = workshop.mcp_definitions
        self.compositions, self.rules = workshop.compositions, workshop.rules

    def _make_people(self, secret: str) -> None:
        """What the command line needs too, in a house that is not opened."""
        config = self.config
        self.account_changes = AccountChanges(self.bus)
        self.refusals = Refusals(self.store)
        self.departure = Departure(cancel_runs_of, hand_over_shared)
        limits = Limits(config.limits)
        self.accounts = AccountService(
            self.store,
            passwords=self.passwords,
            tokens=Tokens(
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
            departure=self.departure,
            stop_runs=RunStopper(self.store, None).stop_all_of,
        )

    async def open(self) -> None:
        """Migrates, makes the first user, finds providers, takes up what was running."""
        config = self.config
        tell_of(self.shelf)
        if self.store.is_sqlite:
            self.lock.take()
        await asyncio.gather(asyncio.to_thread(bring_up, self.engine), self._open_sandbox())
        await self.store.write(lambda session: take_secret(session, self.vault))
        # As root with Landlock, programs are another user, who finds Python's packages in there.
        set_passable(self.data_dir, is_passable=self.sandbox.in_force == "landlock")
        await self.bus.open()
        await self.relay.open()
        await self.transfer.open()
        self._wire_providers()
        self._wire_runs()
        self._wire_conversations()
        self._wire_people()
        if await self.operator.ensure_first_user(self.environ.get("LUXX_ADMIN_PASSWORD")):
            logger.info("first_user_made", username="admin")
        await connect_what_is_there(self.store, self.vault, self.environ, config, self.local)
        await self._warn_of_open_registration()
        await self.durable.open()
        if config.local.enabled and self.local.missing() is None and await has_local_provider(self.store):
            self.local.start()
        self._background = [
            asyncio.create_task(self._keep_lines_open()),
            asyncio.create_task(watch_event_loop(self.metrics)),
            asyncio.create_task(keep_audit(self.store, self.refusals, days=self.config.runs.retention_days)),
            asyncio.create_task(self.notices.keep_telling()),
            asyncio.create_task(self.sockets.keep_checking()),
            asyncio.create_task(self.streams.keep_checking()),
            asyncio.create_task(keep_logs(self.store, days=self.config.runs.retention_days)),
        ]
        if not self.store.is_sqlite:
            self._background.append(asyncio.create_task(sweep_transfers(self.transfer)))
        self.mcp.open()
        settle()

    async def _open_sandbox(self) -> None:
        await self.sandbox.open()
        await self.sandbox.readers.open()

    async def _warn_of_open_registration(self) -> None:
        auth, limits = self.config.auth, self.config.limits
        said = await self.store.read(lambda session: open_registration(session, auth, limits))
        if said is not None and is_unlimited(auth, limits):
            logger.warning(
                "registration_without_daily_limit",
                reason=f"{said}; set limits.tokens_per_day, or auth.allow_registration to false",
            )

    def leave(self) -> None:
        """Admits nothing new, ends streams; clients go on elsewhere, or here after the next start."""
        if self.durable.is_open:
            logger.info("stopping", driven=len(self.durable.drives()))
        self.durable.leave()
        self.hub.close()

    async def drain(self) -> None:
        """Lets runs end for a while; the rest is handed over by `close`. There is one such while."""
        if not self._is_drained:
            self._is_drained = True
            await self.durable.drain(self.config.runs.grace_seconds)

    def hurry(self) -> None:
        """Ends `drain` at once."""
        self.durable.hurry()

    async def close(self) -> None:
        """Ends it; what is driven here goes on elsewhere, or after the next start."""
        self.leave()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.refusals.flush()
        await self.drain()
        await self.durable.close()
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
        config, own_tools_in = self.config, self.compositions.own_tools_in
        finds = (self.providers, self.executor, self.workspaces, self.replay, own_tools_in, self.shelf)
        self.loop = ChatLoop(
            store=self.store,
            hub=self.hub,
            client=self.client,
            executor=self.executor,
            crew=CrewFinder(*finds),
            engine=lambda: self.durable,
            max_iterations=config.tools.max_iterations,
            limits=config.limits,
            metrics=self.metrics,
            decision_seconds=config.limits.question_timeout_seconds,
            told=self.notices.told,
            storage=self.storage,
            asked=self._answer_covered_questions,
        )
        self.durable = Durable(
            self.store,
            self.loop.drive,
            self.bus,
            process=this_process(self.process, self.kind),
            lease_seconds=config.runs.lease_seconds,
            limits=config.limits,
            is_alone=self.store.is_sqlite,
            at_beat=self._answer_due_questions,
        )
        self.runs = RunService(
            self.store,
            self.hub,
            self.durable,
            self.providers,
            self.registry,
            config.limits,
            self.attachments,
            self.notices.told,
            own_tools_in,
            self.storage,
            WhenAsked(config.tools.when_asked),
        )

    def _wire_conversations(self) -> None:
        self.questions = QuestionService(
            self.store, self.hub, self.durable, self.executor, self.notices.told, self.workspaces.path_of
        )
        self.processes = ProcessService(self.store)
        quota_mb = self.config.files.quota_mb
        self.branches = BranchService(self.store, quota_mb=quota_mb, forget_runs=forget_runs)
        self.projects = ProjectService(self.store)
        self.conversations = ConversationService(
            self.store,
            check_provider=self._check_provider,
            stop_run=self.runs.stop,
            forget_runs=forget_runs,
            forget_runs_of=forget_runs_of,
        )

    def _wire_people(self) -> None:
        self.tenants = TenantService(self.store, check_agent=no_agents)
        self.administration = Administration(
            self.store,
            passwords=self.passwords,
            workspaces=self.workspaces,
            changes=self.account_changes,
            departure=self.departure,
            stop_runs=RunStopper(self.store, self.durable).stop_all_of,
        )

    async def _check_provider(self, caller: Caller, provider_id: int) -> None:
        await self.providers.get(caller, provider_id)

    async def _answer_due_questions(self) -> None:
        await self.questions.answer_due()

    async def _answer_covered_questions(self, user_id: int) -> None:
        await self.questions.answer_covered(user_id)

    async def workspace_of(self, caller: Caller) -> Path:
        """The caller's directory, made where the config says so."""
        return await asyncio.to_thread(self.workspaces.prepare_if_wanted, caller.user_id)

    async def _keep_lines_open(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.hub.wake_all()

    def service_state(self) -> ServiceState:
        """What the public routes tell."""

        async def database() -> object:
            return await self.store.read(lambda session: session.scalar(text("SELECT 1")))

        async def engine() -> object:
            if not self.durable.is_open:
                raise RuntimeError("the engine is closed")
            return True

        return ServiceState(
            bus=self.bus,
            version=__version__,
            database="sqlite" if self.store.is_sqlite else "postgresql",
            sandbox=self.sandbox.in_force,
            sandbox_backends=self.sandbox.reports,
            document_readers=self.sandbox.readers.held_by,
            mcp_servers=lambda: [one.state for one in self.mcp.statuses],
            metrics=self.metrics,
            is_metrics_public=self.config.observability.metrics_public,
            checks={"database": database, "engine": engine},
        )
