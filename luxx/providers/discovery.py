"""Provider discovery at the first start: environment keys, `llm:` section, loopback servers, embedded model.

`discover` is pure, `probe_loopback` sends requests, `connect_discovered` writes rows for a first user who
has no provider.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import httpx
import msgspec
import structlog
from sqlalchemy import Row, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import DEFAULT_TENANT_ID
from luxx.domain.accounts.models import User
from luxx.errors import InvalidInput
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import Config, LlmConfig
from luxx.infra.network.hosts import Reach, reach_of_name
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store
from luxx.providers.addresses import Endpoint, parse_base_url
from luxx.providers.catalog import DEFAULT_MODELS, can_chat
from luxx.providers.choosing import set_default
from luxx.providers.local.model import LOCAL, LocalModel
from luxx.providers.models import AllowedHostRow, ProviderRow, validate_api_key
from luxx.providers.parsing import json_objects
from luxx.providers.queries import has_no_provider, store_key
from luxx.providers.registry import ProviderType, adapter_for, default_base_url
from luxx.wire.tool import CommandPermission

PROBE_SECONDS = 0.7
MAX_PROBE_BYTES = 1_000_000
LOOPBACK_SERVERS = (("ollama", 11434), ("lm-studio", 1234), ("llama.cpp", 8080))
"""OpenAI-compatible servers and their default ports."""

ENVIRONMENT_KEYS = (
    (ProviderType.OPENAI, "OPENAI"),
    (ProviderType.ANTHROPIC, "ANTHROPIC"),
    (ProviderType.DEEPSEEK, "DEEPSEEK"),
    (ProviderType.GEMINI, "GEMINI"),
)

log = structlog.stdlib.get_logger(__name__)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A server that responded on loopback, and its models."""

    name: str
    base_url: str
    models: list[str]


class DiscoveredProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that can be connected. `problem` says why it is not usable yet; empty if it is."""

    name: str
    provider_type: str
    base_url: str
    source: str
    api_key: str = ""
    default_model: str = ""
    problem: str = ""

    def __repr__(self) -> str:
        return f"DiscoveredProvider({self.name}, {self.provider_type}, {self.base_url}, from {self.source})"


def discover(
    environ: Mapping[str, str], config: Config, probes: Sequence[Probe], *, local_model: str = ""
) -> list[DiscoveredProvider]:
    """The providers that can be connected, in order of preference.

    The embedded model is included only if no other is usable. `local_model` is its name, empty if it cannot
    run.
    """
    discovered = _merge_configured(providers_of_environment(environ), _from_config(config.llm))
    used_host_ports = {_host_port_of(provider.base_url) for provider in discovered}
    discovered += [
        _from_probe(probe) for probe in probes if _host_port_of(probe.base_url) not in used_host_ports
    ]
    if local_model and not any(not provider.problem for provider in discovered):
        discovered.append(
            DiscoveredProvider(
                name=LOCAL,
                provider_type=LOCAL,
                base_url="",
                source="embedded model",
                default_model=local_model,
            )
        )
    return discovered


def providers_of_environment(environ: Mapping[str, str]) -> list[DiscoveredProvider]:
    """The providers whose keys are in the environment."""
    return [
        provider for provider in (_from_environment(environ, *each) for each in ENVIRONMENT_KEYS) if provider
    ]


def _from_environment(
    environ: Mapping[str, str], provider_type: ProviderType, prefix: str
) -> DiscoveredProvider | None:
    api_key = environ.get(f"{prefix}_API_KEY", "").strip()
    if not api_key:
        return None
    base_url = environ.get(f"{prefix}_BASE_URL", "").strip() or default_base_url(provider_type)
    return _validate(
        DiscoveredProvider(
            name=str(provider_type),
            provider_type=provider_type,
            base_url=base_url,
            source=f"{prefix}_API_KEY",
            api_key=api_key,
            default_model=DEFAULT_MODELS.get(provider_type, ""),
        )
    )


def _from_config(llm: LlmConfig) -> DiscoveredProvider | None:
    """The provider of the `llm:` section, if it has a key or a private address, which needs none."""
    provider_type = llm.provider or (ProviderType.OPENAI_COMPATIBLE if llm.api_url else "")
    base_url = llm.api_url or default_base_url(provider_type)
    if not provider_type or not (llm.api_key or _is_private(base_url)):
        return None
    return _validate(
        DiscoveredProvider(
            name=provider_type,
            provider_type=provider_type,
            base_url=base_url,
            source="llm section of the config",
            api_key=llm.api_key.strip(),
            default_model=llm.model or DEFAULT_MODELS.get(provider_type, ""),
        )
    )


def _merge_configured(
    discovered: list[DiscoveredProvider], configured: DiscoveredProvider | None
) -> list[DiscoveredProvider]:
    """Adds the configured provider; it replaces a discovered one with the same type and key."""
    if configured is None:
        return discovered
    for index, provider in enumerate(discovered):
        if (provider.provider_type, provider.api_key) == (configured.provider_type, configured.api_key):
            if provider.base_url != default_base_url(provider.provider_type):
                configured = msgspec.structs.replace(configured, base_url=provider.base_url)
            return [*discovered[:index], configured, *discovered[index + 1 :]]
    return [*discovered, configured]


def _from_probe(probe: Probe) -> DiscoveredProvider:
    chat_models = [model for model in probe.models if can_chat(model)]
    provider_type = ProviderType.OLLAMA if probe.name == "ollama" else ProviderType.OPENAI_COMPATIBLE
    return DiscoveredProvider(
        name=probe.name,
        provider_type=provider_type,
        base_url=probe.base_url,
        source=f"a server at {probe.base_url}",
        default_model=chat_models[0] if chat_models else "",
        problem="" if chat_models else "it offers no chat model; load one there",
    )


def _validate(discovered: DiscoveredProvider) -> DiscoveredProvider:
    try:
        adapter_for(discovered.provider_type)
        validate_api_key(discovered.api_key)
        endpoint = parse_base_url(discovered.base_url)
        if reach_of_name(endpoint.host) is Reach.FORBIDDEN:
            raise InvalidInput(f"{endpoint.host_port} is a metadata or link-local address")
    except InvalidInput as error:
        return msgspec.structs.replace(discovered, problem=error.message)
    if not discovered.default_model:
        return msgspec.structs.replace(discovered, problem="no model is configured; set llm.model")
    return msgspec.structs.replace(discovered, base_url=endpoint.url)


def _endpoint_of(base_url: str) -> Endpoint | None:
    try:
        return parse_base_url(base_url)
    except InvalidInput:
        return None


def _host_port_of(base_url: str) -> str:
    endpoint = _endpoint_of(base_url)
    return base_url if endpoint is None else endpoint.host_port


def _is_private(base_url: str) -> bool:
    endpoint = _endpoint_of(base_url)
    return endpoint is not None and reach_of_name(endpoint.host) is Reach.PRIVATE


async def probe_loopback(
    servers: Sequence[tuple[str, int]] = LOOPBACK_SERVERS, *, except_ports: Collection[int] = ()
) -> list[Probe]:
    """The loopback servers that list models like an OpenAI server. `except_ports` are Luxx's own ports."""
    async with httpx.AsyncClient(timeout=PROBE_SECONDS, trust_env=False, verify=False) as client:  # no HTTPS
        pending = [_probe(client, name, port) for name, port in servers if port not in except_ports]
        return [probe for probe in await asyncio.gather(*pending) if probe is not None]


class _Models(msgspec.Struct):
    object: str
    data: list[Any] | None = None


async def _probe(client: httpx.AsyncClient, name: str, port: int) -> Probe | None:
    base_url = f"http://127.0.0.1:{port}/v1"
    body = bytearray()
    try:
        async with asyncio.timeout(PROBE_SECONDS), client.stream("GET", f"{base_url}/models") as response:
            if response.status_code != 200:
                return None
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_PROBE_BYTES:
                    return None
        model_list = msgspec.json.decode(body, type=_Models)
    except (httpx.HTTPError, TimeoutError, msgspec.DecodeError):
        return None
    if model_list.object != "list":
        return None
    ids = [model.get("id") for model in json_objects(model_list.data)]
    return Probe(name=name, base_url=base_url, models=[id_ for id_ in ids if isinstance(id_, str)])


async def connect_discovered(
    store: Store, vault: Vault, *, user_id: int, tenant_id: int, discovered: Sequence[DiscoveredProvider]
) -> list[int]:
    """Inserts the usable providers as shared ones, the first as the default; returns their ids.

    Does nothing if the user has a provider, so it may run at every start. Private addresses become allowed
    hosts, because the operator's start discovered them.
    """

    def insert_discovered(session: Session) -> list[int]:
        if not has_no_provider(session, user_id):
            return []
        ids: list[int] = []
        for provider in discovered:
            if not provider.problem:
                ids.append(insert_provider(session, vault, provider, user_id, tenant_id, is_default=not ids))
        return ids

    try:
        ids = await store.write(insert_discovered)
    except IntegrityError:
        # Another process with the same database inserted them first.
        return []
    if ids or not any(not provider.problem for provider in discovered):
        for provider in discovered:
            log_discovered(provider)
    return ids


def insert_provider(
    session: Session,
    vault: Vault,
    discovered: DiscoveredProvider,
    user_id: int,
    tenant_id: int,
    *,
    is_default: bool,
) -> int:
    now = utc_now()
    row = ProviderRow(
        user_id=user_id,
        tenant_id=tenant_id,
        name=discovered.name,
        provider_type=str(discovered.provider_type),
        base_url=discovered.base_url,
        default_model=discovered.default_model,
        is_shared=True,
        created_at=now,
        updated_at=now,
    )
    session.add(row)
    session.flush()
    store_key(vault, row, discovered.api_key)
    set_default(session, row, is_default)
    _allow_private_host(session, discovered, user_id)
    session.flush()
    return row.id


def _allow_private_host(session: Session, discovered: DiscoveredProvider, user_id: int) -> None:
    """Allows the host if it is private or may resolve to a private address: the operator chose it."""
    endpoint = _endpoint_of(discovered.base_url)
    if endpoint is None or reach_of_name(endpoint.host) not in (None, Reach.PRIVATE):
        return
    if discovered.base_url.startswith("https://") and discovered.base_url == default_base_url(
        discovered.provider_type
    ):
        return  # The vendor's default address, which the operator did not choose.
    if session.get(AllowedHostRow, endpoint.host_port) is None:
        session.add(AllowedHostRow(host_port=endpoint.host_port, allowed_by=user_id, created_at=utc_now()))


def log_discovered(discovered: DiscoveredProvider) -> None:
    fields = {"name": discovered.name, "source": discovered.source, "base_url": discovered.base_url}
    if discovered.problem:
        log.warning("provider_discovered_unusable", **fields, reason=discovered.problem)
    else:
        log.info("provider_discovered", **fields, model=discovered.default_model)


async def connect_discovered_providers(
    store: Store, vault: Vault, environ: Mapping[str, str], config: Config, local: LocalModel
) -> bool:
    """Discovers providers and connects them for the first operator; False if they have a provider already."""

    def operator_without_provider(session: Session) -> tuple[Row[int, int] | None, bool]:
        operator = first_operator(session)
        return operator, operator is not None and has_no_provider(session, operator.id)

    operator, has_none = await store.read(operator_without_provider)
    if operator is None or not has_none:
        return operator is None
    probes = await probe_loopback(except_ports=(config.app.port,))
    local_model = local.model_name if local.unavailable_reason() is None else ""
    discovered = discover(environ, config, probes, local_model=local_model)
    await connect_discovered(
        store, vault, user_id=operator.id, tenant_id=operator.tenant_id, discovered=discovered
    )
    return True


async def has_local_provider(store: Store) -> bool:
    """Whether an enabled provider uses the embedded model, so that it should be started."""
    wanted = select(ProviderRow.id).where(ProviderRow.provider_type == LOCAL, ProviderRow.enabled).limit(1)
    return await store.read(lambda session: session.scalar(wanted)) is not None


def first_operator(session: Session) -> Row[int, int] | None:
    """The id and tenant of the oldest operator: no other user may get the operator's keys."""
    operators = select(User.id, User.tenant_id).where(
        User.tenant_id == DEFAULT_TENANT_ID, User.permission_level == CommandPermission.ADMIN
    )
    return session.execute(operators.order_by(User.id).limit(1)).one_or_none()
