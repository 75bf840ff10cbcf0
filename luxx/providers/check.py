"""Testing a provider: a real question to its server, and what its answer says is wrong."""

import asyncio
import re
import time

import msgspec
from msgspec import UNSET, UnsetType

from luxx.errors import (
    Garbled,
    LuxxError,
    ProviderError,
    ProviderRefused,
    RateLimited,
    Stalled,
    Unreachable,
)
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.client import ModelClient
from luxx.wire.message import UserPrompt

CHECK_SECONDS = 30.0
CHECK_TOKENS = 256
"""Enough for a model that thinks first; few write more to the question asked."""

_KEY_REFUSED = re.compile(r"api[ _]key (not valid|not found|expired)", re.IGNORECASE)
"""What Google says of a wrong key, with a status that elsewhere means a wrong request."""


class ProviderCheck(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` names what is wrong: wrong_key, wrong_url, wrong_model, unreachable, rate_limited, refused,
    failed, or the kind of the error that kept the server from being asked at all.
    """

    ok: bool
    latency_ms: int
    models: list[str] | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class _Finding(Exception):
    """Ends a check with what is wrong."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence


async def check_provider(
    client: ModelClient, target: Target, model: str, *, seconds: float = CHECK_SECONDS
) -> ProviderCheck:
    """Lists models, then asks for a tiny completion if a model is known; all in `seconds`.

    Both, because some servers list models to anybody and some do not list them at all.
    """
    started = time.monotonic()
    models: list[str] | None = None
    try:
        async with asyncio.timeout(seconds):
            models = await _list(client, target, is_vital=not model)
            if model:
                await _complete(client, target, model, is_listed=models is not None)
    except _Finding as finding:
        return _result(started, models, finding)
    except TimeoutError:
        return _result(
            started,
            models,
            _Finding("unreachable", f"no whole answer from {target.base_url} in {seconds:.0f} s"),
        )
    return _result(started, models, None)


def _result(started: float, models: list[str] | None, finding: _Finding | None) -> ProviderCheck:
    return ProviderCheck(
        ok=finding is None,
        latency_ms=round((time.monotonic() - started) * 1000),
        models=UNSET if models is None else models,
        kind=UNSET if finding is None else finding.kind,
        error=UNSET if finding is None else finding.sentence,
    )


async def _list(client: ModelClient, target: Target, *, is_vital: bool) -> list[str] | None:
    try:
        return await client.list_models(target)
    except LuxxError as error:
        finding = _explain(error, target, model="")
        if not is_vital and finding.kind in ("wrong_url", "refused"):
            return None
        raise finding from error


async def _complete(client: ModelClient, target: Target, model: str, *, is_listed: bool) -> None:
    request = CompletionRequest(model=model, messages=[UserPrompt(text="Say ok.")], max_tokens=CHECK_TOKENS)
    try:
        await client.complete(request, target)
    except LuxxError as error:
        raise _explain(error, target, model=model if is_listed else "") from error


def _explain(error: LuxxError, target: Target, *, model: str) -> _Finding:
    """What an error means to the one who set it up; `model` is given once the URL is known to be right."""
    said = error.message.replace(target.api_key, "****") if target.api_key else error.message
    status = error.status if isinstance(error, ProviderError) else None
    if error.kind in ("private_address", "address_forbidden"):
        return _Finding(error.kind, said)
    if status in (401, 403) or (status == 400 and _KEY_REFUSED.search(said)):
        return _Finding("wrong_key", f"{target.base_url} refused the key ({status}); check api_key")
    if status in (404, 405) and model:
        return _Finding("wrong_model", f"{target.base_url} does not know the model '{model}': {said}")
    if status in (301, 302, 303, 307, 308, 404, 405) or isinstance(error, Garbled):
        return _Finding(
            "wrong_url", f"{target.base_url} does not speak this protocol; check base_url: {said}"
        )
    if isinstance(error, Unreachable | Stalled):
        return _Finding("unreachable", f"{target.base_url} cannot be reached: {said}")
    if isinstance(error, RateLimited):
        return _Finding("rate_limited", said)
    return _Finding("refused" if isinstance(error, ProviderRefused) else "failed", said)
