"""Calls a scripted provider through the real transport; waits are recorded instead of slept."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from luxx.errors import ProviderError
from luxx.infra.config.schema import ProvidersConfig
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.client import ModelClient
from luxx.providers.retries import Retry
from luxx.providers.scripted import Rule, Script, ScriptedProvider
from luxx.providers.transport import Transport
from luxx.wire.message import UserPrompt
from luxx.wire.turn import Delta, TextDelta

KEY = "sk-test-0123456789abcdefghij"
ASK = CompletionRequest(model="m", messages=[UserPrompt(text="hello")])


class CallResult(msgspec.Struct, kw_only=True):
    """The result of a call: deltas up to its end or error, the retries, the waits and the refused tools."""

    deltas: list[Delta] = []
    error: ProviderError | None = None
    retries: list[Retry] = []
    waits: list[float] = []
    refused_tools: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))


class Caller:
    def __init__(self, transport: Transport, config: ProvidersConfig, rand: Callable[[], float]) -> None:
        self.waits: list[float] = []
        self.transport = transport
        self.client = ModelClient(transport, config, sleep=self._sleep, rand=rand)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def call(self, target: Target, request: CompletionRequest = ASK) -> CallResult:
        called = CallResult(deltas=[], retries=[], waits=self.waits)

        async def on_retry(retry: Retry) -> None:
            called.retries.append(retry)

        try:
            async with self.client.stream_completion(request, target, on_retry=on_retry) as answer:
                while deltas := await answer.read():
                    called.deltas += deltas
                called.refused_tools = answer.refused_tools
        except ProviderError as error:
            called.error = error
        return called


def target_of(url: str, kind: str = "openai_compatible") -> Target:
    return Target(provider_id=1, provider_type=kind, base_url=f"{url}/v1", api_key=KEY)


@asynccontextmanager
async def calling(rand: Callable[[], float] = lambda: 0.5, **settings: Any) -> AsyncGenerator[Caller, None]:
    config = ProvidersConfig(
        **{"connect_timeout_seconds": 2, "idle_timeout_seconds": 5, "retries": 0, **settings}
    )
    transport = Transport(config)
    try:
        yield Caller(transport, config, rand)
    finally:
        await transport.aclose()


async def ask_scripted(*rules: Rule, **settings: Any) -> CallResult:
    """One call to a server with these rules; checks that all of them are used."""
    async with ScriptedProvider(Script(rules=list(rules))) as server, calling(**settings) as caller:
        return await caller.call(target_of(server.url))
