"""Several server processes of one database, simulated in one event loop, with a scripted model.

A killed process neither sends heartbeats nor drives runs nor publishes, as after kill -9.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from luxx.app.container import Services
from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.views import ConversationChange
from luxx.infra.config.schema import (
    AppConfig,
    Config,
    DatabaseConfig,
    LimitsConfig,
    LocalConfig,
    ProvidersConfig,
    RunsConfig,
    WorkspaceConfig,
)
from luxx.providers.models import NewProvider
from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from luxx.runs.engine.processes import ProcessKind
from luxx.runs.options import NewMessage
from luxx.wire.run import ENDED, Run, RunStatus
from luxx.wire.tool import CommandPermission

T = TypeVar("T")

LEASE_SECONDS = 1.0
WAIT_SECONDS = 20.0
POLL_SECONDS = 0.02
GATED = [Text(text="I am"), Gate(name="gate"), Text(text=" here.")]


def always_replies(*reply: Any) -> Script:
    """Every call gets this reply."""
    return Script(rules=[Rule(reply=list(reply))])


def one_gate_each(*texts: str) -> Script:
    """The answer to each of these messages waits at a gate that has the message as its name."""
    return Script(
        rules=[
            Rule(when=When(user=text), reply=[Text(text="I am"), Gate(name=text), Text(text=" here.")])
            for text in texts
        ]
    )


class InProcessCluster:
    """`async with InProcessCluster(folder, url, script) as cluster:`; `limits` are those of the
    configuration."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        model: Script,
        *,
        grace_seconds: float = 0.0,
        **limits: int,
    ) -> None:
        self.model = ScriptedProvider(model)
        self._folder = folder
        self._url = database_url
        self._grace_seconds = grace_seconds
        self._limits = limits
        self._open: list[Services] = []
        self._ends = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._ends.enter_async_context(self.model)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for services in list(self._open):
            await self.stop(services)
        await self._ends.__aexit__(kind, error, trace)

    async def services(self, kind: ProcessKind = ProcessKind.SERVE) -> Services:
        """Starts one more process."""
        config = Config(
            app=AppConfig(secret_key="a-secret-key-of-a-test-of-32-bytes"),
            database=DatabaseConfig(
                type="sqlite" if self._url.startswith("sqlite") else "postgresql", url=self._url
            ),
            workspace=WorkspaceConfig(root=str(self._folder / "workspaces")),
            local=LocalConfig(enabled=False),
            limits=LimitsConfig(**self._limits),
            providers=ProvidersConfig(allow_private=[self.model.url.removeprefix("http://")]),
            runs=RunsConfig(lease_seconds=LEASE_SECONDS, grace_seconds=self._grace_seconds),
            data_dir=str(self._folder / "data"),
        )
        services = Services(config, {"LUXX_ADMIN_PASSWORD": "a-password-of-a-test"}, kind)
        await services.open()
        self._open.append(services)
        return services

    async def stop(self, services: Services) -> None:
        """Stops a process as SIGTERM does."""
        self._open.remove(services)
        services.stop_admitting()
        await services.drain()
        await services.close()

    async def kill(self, services: Services) -> None:
        """Kills a process as SIGKILL does: its rows stay as they are."""
        self._open.remove(services)
        await services.bus.close()
        run_driver = services.run_driver
        tasks = [driven.task for driven in run_driver.drives().values()]
        await run_driver.heartbeat.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in services._background:
            task.cancel()
        await asyncio.gather(*services._background, return_exceptions=True)
        await services.transport.aclose()
        await asyncio.to_thread(services.release)

    async def add_user(self, services: Services, name: str) -> Caller:
        """A user with the model as their provider."""
        view = await services.operator.add_user(
            name, "a-password-of-a-test-1", level=CommandPermission.READ_ONLY
        )
        caller = Caller(
            user_id=view.id,
            tenant_id=1,
            username=name,
            permission_level=CommandPermission.READ_ONLY,
            sign_in_id="",
        )
        await services.providers.create(
            caller,
            NewProvider(
                name="scripted",
                provider_type="openai_compatible",
                base_url=f"{self.model.url}/v1",
                default_model="scripted",
            ),
        )
        return caller

    async def send(self, services: Services, caller: Caller, text: str = "hello") -> Run:
        """Sends a message in a new conversation. Returns its run."""
        conversation = await services.conversations.create(caller, ConversationChange())
        return await services.chats.send(caller, NewMessage(conversation_id=conversation.id, text=text))

    async def gated_run(self, services: Services) -> tuple[Caller, Run]:
        """A run of a new user, whose model has reached the gate of GATED."""
        ann = await self.add_user(services, "ann")
        sent = await self.send(services, ann)
        await self.model.reached("gate")
        return ann, sent


async def until(find: Callable[[], Awaitable[T | None]], seconds: float = WAIT_SECONDS) -> T:
    """Waits until `find` returns something, and returns it."""
    async with asyncio.timeout(seconds):
        while not (result := await find()):  # noqa: ASYNC110 - the database does not call back
            await asyncio.sleep(POLL_SECONDS)
        return result


async def status_of(services: Services, caller: Caller, run: Run) -> RunStatus:
    return (await services.runs.get(caller, run.id)).status


async def ended(services: Services, caller: Caller, run: Run, seconds: float = WAIT_SECONDS) -> Run:
    """The run, when it has ended."""

    async def find() -> Run | None:
        current = await services.runs.get(caller, run.id)
        return current if current.status in ENDED else None

    return await until(find, seconds)


async def types_of(services: Services, caller: Caller, run: Run) -> list[str]:
    """The types of the events in the log of a run; checks that its numbers have no gap."""
    events, _ = await services.runs.events(caller, run.id, after=0, limit=500)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.type for event in events]
