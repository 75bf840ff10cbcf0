"""Checks a provider: sends real requests to its server and classifies what is wrong."""

import asyncio
import time
from collections.abc import Callable

import msgspec
from msgspec import UNSET, UnsetType

from luxx.errors import (
    KeyRefused,
    LuxxError,
    MalformedStream,
    OutOfCredit,
    ProviderError,
    ProviderRefused,
    RateLimited,
    StreamStalled,
    Unreachable,
)
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.catalog import ModelCard
from luxx.providers.client import Completion, ModelClient
from luxx.wire.message import UserPrompt

CHECK_SECONDS = 30.0
CHECK_TOKENS = 256
"""Enough for a model that thinks first; the prompt asks for one word."""

WRONG_KEY = "wrong_key"


class ProviderCheck(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` names what is wrong: wrong_key, wrong_url, wrong_model, unreachable, rate_limited,
    out_of_credit, refused, failed, or the kind of the error that prevented the request.
    """

    ok: bool
    latency_ms: int
    models: list[str] | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


OnCompletion = Callable[[CompletionRequest, Completion], None]
OnAnswer = Callable[[ModelCard, CompletionRequest, Completion], None]
"""Called with the completion of a check, which the provider bills, and the card of its model."""


class _CheckFailure(Exception):
    """Ends a check with the kind of the failure and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


async def check_provider(
    client: ModelClient,
    target: Target,
    model: str,
    *,
    seconds: float = CHECK_SECONDS,
    on_completion: OnCompletion | None = None,
) -> ProviderCheck:
    """Lists models, then requests a short completion if `model` is given, within `seconds` in total.

    Both, because some servers list models without a key and some do not list them at all.
    `on_completion` is called with the completion, if there was one.
    """
    started = time.monotonic()
    models: list[str] | None = None
    try:
        async with asyncio.timeout(seconds):
            models = await _list_models(client, target, is_required=not model)
            if model:
                answer = await _request_completion(client, target, model, is_listed=models is not None)
                if on_completion is not None:
                    on_completion(*answer)
    except _CheckFailure as failure:
        return _result(started, models, failure)
    except TimeoutError:
        message = f"no complete response from {target.base_url} within {seconds:.0f} s"
        return _result(started, models, _CheckFailure("unreachable", message))
    return _result(started, models, None)


def _result(started: float, models: list[str] | None, failure: _CheckFailure | None) -> ProviderCheck:
    return ProviderCheck(
        ok=failure is None,
        latency_ms=round((time.monotonic() - started) * 1000),
        models=UNSET if models is None else models,
        kind=UNSET if failure is None else failure.kind,
        error=UNSET if failure is None else failure.message,
    )


async def _list_models(client: ModelClient, target: Target, *, is_required: bool) -> list[str] | None:
    try:
        return await client.list_models(target)
    except LuxxError as error:
        failure = _classify_error(error, target, model="")
        if not is_required and failure.kind in ("wrong_url", "refused"):
            return None
        raise failure from error


async def _request_completion(
    client: ModelClient, target: Target, model: str, *, is_listed: bool
) -> tuple[CompletionRequest, Completion]:
    request = CompletionRequest(model=model, messages=[UserPrompt(text="Say ok.")], max_tokens=CHECK_TOKENS)
    try:
        return request, await client.complete(request, target)
    except LuxxError as error:
        raise _classify_error(error, target, model=model if is_listed else "") from error


def _classify_error(error: LuxxError, target: Target, *, model: str) -> _CheckFailure:
    """The failure to report for an error. `model` is empty until a response has shown the URL to be right."""
    message = error.message.replace(target.api_key, "****") if target.api_key else error.message
    status = error.status if isinstance(error, ProviderError) else None
    if error.kind in ("private_address", "address_forbidden"):
        return _CheckFailure(error.kind, message)
    if isinstance(error, OutOfCredit):
        return _CheckFailure("out_of_credit", message)
    if isinstance(error, KeyRefused) or status == 403:
        return _CheckFailure(WRONG_KEY, f"{target.base_url} refused the key ({status}); check api_key")
    if status in (404, 405) and model:
        return _CheckFailure("wrong_model", f"{target.base_url} does not know the model '{model}': {message}")
    if status in (301, 302, 303, 307, 308, 404, 405) or isinstance(error, MalformedStream):
        return _CheckFailure(
            "wrong_url", f"{target.base_url} does not speak this protocol; check base_url: {message}"
        )
    if isinstance(error, Unreachable | StreamStalled):
        return _CheckFailure("unreachable", f"{target.base_url} cannot be reached: {message}")
    if isinstance(error, RateLimited):
        return _CheckFailure("rate_limited", message)
    return _CheckFailure("refused" if isinstance(error, ProviderRefused) else "failed", message)
