"""`luxx doctor`: checks every part that a server needs and says how to fix problems.

The checks create no file, change no row, hold no lock and print no secret. They start the MCP servers, which
may write to their own directories.
"""

import asyncio
import fcntl
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import URL, Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.app.cli.doctor.machine import (
    examine_container,
    examine_mcp,
    examine_permissions,
    examine_proxy,
    examine_registration,
    examine_sandbox,
    examine_sealed_keys,
    examine_secret,
    examine_skills,
    examine_unit,
)
from luxx.app.cli.doctor.runtime import Finding, bad, examine_work, ok
from luxx.app.serve import is_loopback
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.errors import LuxxError
from luxx.infra.bus.network import choose_transport
from luxx.infra.config.schema import Config
from luxx.infra.observe import redact
from luxx.infra.secrets import MIN_SECRET_BYTES, SECRET_FILE, Vault
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.upgrade import current_step, is_too_old, known_steps
from luxx.providers.addresses import AddressGuard
from luxx.providers.client import ModelClient
from luxx.providers.discovery import discover, first_operator, probe_loopback
from luxx.providers.environment_keys import unused_keys
from luxx.providers.local.model import LOCAL, LocalModel
from luxx.providers.models import ProviderRow
from luxx.providers.queries import has_no_provider
from luxx.providers.registry import ProviderType
from luxx.providers.service import ProviderService
from luxx.providers.transport import Transport
from luxx.wire.tool import CommandPermission

PROVIDER_SECONDS = 15.0
BUS_SECONDS = 15.0
MIN_FREE_BYTES = 500 * 1024 * 1024
"""The space that one day of logs and files may need. With less, database writes may fail."""


async def examine_installation(config: Config, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """All findings, good and bad, in the order in which to fix them."""
    data_dir = Path(config.data_dir)
    findings = [
        examine_secret(config, data_dir),
        _directory("data", data_dir, is_created=True, fix="give a directory you may write with --data-dir"),
        _server(data_dir),
        _directory(
            "workspaces",
            Path(config.workspace.root),
            is_created=config.workspace.auto_create,
            fix="set workspace.root to a directory the server may write",
        ),
        *examine_permissions(config, data_dir),
        *examine_container(config, data_dir, environ),
        *await examine_unit(),
        *await examine_proxy(config),
        _disk(data_dir),
        *await examine_sandbox(config),
        *examine_skills(config),
    ]
    findings += await _examine_database(config, data_dir, environ)
    return findings


# Files


def _directory(part: str, path: Path, *, is_created: bool, fix: str) -> Finding:
    if path.exists():
        if not path.is_dir():
            return bad(part, f"{path} is not a directory", fix)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            owner, user = path.stat().st_uid, os.geteuid()
            if owner != user:
                text = f"{path} belongs to user {owner}, and Luxx runs as user {user}"
                return bad(part, text, f"chown -R {user} {path} (for a volume of a container, on its host)")
            return bad(part, f"{path} cannot be written", fix)
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & stat.S_IWOTH:
            text = f"all users can write to {path} (mode {mode:04o})"
            return bad(part, text, f"chmod o-w {path}")
        return ok(part, f"{path.absolute()} can be written")
    if not is_created:
        text = f"{path} does not exist, and workspace.auto_create is off"
        return bad(part, text, f"mkdir -p {path}")
    if not os.access(_nearest_existing(path), os.W_OK | os.X_OK):
        return bad(part, f"{path} does not exist and cannot be created", fix)
    return ok(part, f"{path.absolute()} is created at the first start")


def _nearest_existing(path: Path) -> Path:
    """The directory itself or its nearest existing parent."""
    return next(directory for directory in (path.absolute(), *path.absolute().parents) if directory.exists())


def _server(data_dir: Path) -> Finding:
    state = "a server is running on" if _is_locked(data_dir) else "no server is using"
    return ok("server", f"{state} this data directory")


def _is_locked(data_dir: Path) -> bool:
    """Whether a server runs here: it tries a shared lock, which fails while a server holds its own."""
    try:
        descriptor = os.open(data_dir / "server.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _disk(data_dir: Path) -> Finding:
    path = _nearest_existing(data_dir)
    free = shutil.disk_usage(path).free
    text = f"{free / 1024**3:.1f} GiB free at {path}"
    if free < MIN_FREE_BYTES:
        return bad("disk", text, "free disk space: a full disk stops every write")
    return ok("disk", text)


# The database


async def _examine_database(config: Config, data_dir: Path, environ: Mapping[str, str]) -> list[Finding]:
    try:
        url = resolve_url(config.database.url, data_dir)
    except LuxxError as error:
        return [bad("database", redact(error.message), "fix database.url")]
    if _is_new(url):
        text = f"{url.database} does not exist yet; the first start creates it"
        return [ok("database", text), *await _first_start(config, data_dir, environ)]
    engine = open_engine(url)
    try:
        database = await asyncio.to_thread(_database, engine)
        if database.is_bad or database.fix:
            return [database]
        store, secret = Store(engine), _existing_secret(config, data_dir)
        try:
            return [
                database,
                *await store.read(lambda session: examine_sealed_keys(session, config, secret)),
                *await store.read(lambda session: examine_registration(session, config)),
                *await _bus(config, engine),
                await store.read(lambda session: _default_passwords(session, config.app.host)),
                *await examine_work(
                    store, data_dir, has_server=_is_locked(data_dir), lease_seconds=config.runs.lease_seconds
                ),
                *await _providers(store, config, data_dir, environ),
                *await store.read(lambda session: _environment_keys(session, config, secret, environ)),
                *await examine_mcp(config, store),
            ]
        finally:
            store.close()
    finally:
        engine.dispose()


def _is_new(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists()


def _database(engine: Engine) -> Finding:
    part, known_revisions = "database", known_steps()
    try:
        current = current_step(engine)
    except SQLAlchemyError as error:
        reason = " ".join(redact(str(getattr(error, "orig", None) or error)).split())
        fix = "start the database, or fix database.url"
        return bad(part, f"does not answer: {reason}", fix)
    if current == known_revisions[-1]:
        return ok(part, f"{engine.dialect.name} answers, at revision {current}")
    if current is not None and current not in known_revisions:
        text = f"is at revision '{current}', which this version does not know"
        fix = "start the newer version it was used with, or restore a backup"
        if is_too_old(current):
            fix = "start with a new database: a development version made this one"
        return bad(part, text, fix)
    text = f"is at revision {current or 'none'}, this version needs {known_revisions[-1]}"
    return ok(part, text, "the next start migrates it, or run `luxx migrate` now")


async def _bus(config: Config, engine: Engine) -> list[Finding]:
    """No finding if the configuration needs no bus."""
    part, fix = "bus", "start it, or fix hub.url; until then updates from runs on other servers arrive later"
    try:
        transport = choose_transport(engine, config.hub.url, config.app.secret_key)
        if transport is None:
            return []
        async with asyncio.timeout(BUS_SECONDS):
            await transport.open("doctor")
        await transport.close()
    except LuxxError as error:
        return [bad(part, redact(error.message), fix)]
    except Exception as error:
        # Each transport raises other exceptions. With any of them servers cannot exchange messages.
        reason = " ".join(redact(str(error)).split()) or type(error).__name__
        return [bad(part, f"does not answer: {reason}", fix)]
    return [ok(part, f"servers exchange messages over {'Redis' if config.hub.url else 'PostgreSQL'}")]


def _default_passwords(session: Session, host: str) -> Finding:
    usernames = list(session.scalars(select(User.username).where(User.has_default_password, User.is_active)))
    if not usernames:
        return ok("password", "no user has the published default password")
    users = ", ".join(usernames)
    fix = f"luxx user passwd {usernames[0]}"
    if is_loopback(host):
        text = f"{users} still has the published default password, and only this machine can use it"
        return ok("password", text, fix)
    text = f"{users} still has the published default password while the server listens on {host}"
    return bad("password", text, fix)


# Models


async def _first_start(config: Config, data_dir: Path, environ: Mapping[str, str]) -> list[Finding]:
    """The providers that the first start would connect."""
    local = LocalModel(config.local, data_dir)
    unavailable_reason = local.unavailable_reason()
    probes = await probe_loopback(except_ports=(config.app.port,))
    discovered = discover(environ, config, probes, local_model="" if unavailable_reason else local.model_name)
    usable = [one for one in discovered if not one.problem]
    findings = [
        bad(f"provider {one.name}", one.problem, f"see {one.source}") for one in discovered if one.problem
    ]
    if usable:
        names = ", ".join(f"{one.name} ({one.source})" for one in usable)
        return [ok("providers", f"the first start connects {names}"), *findings]
    return [*findings, _no_model(unavailable_reason)]


def _no_model(unavailable_reason: str | None) -> Finding:
    text = "no model is configured" + (f"; {unavailable_reason}" if unavailable_reason else "")
    fix = "set an API key such as DEEPSEEK_API_KEY, or `luxx model pull smollm2`, or add a provider"
    return bad("providers", text, fix)


async def _providers(
    store: Store, config: Config, data_dir: Path, environ: Mapping[str, str]
) -> list[Finding]:
    is_real = ProviderRow.provider_type != ProviderType.DEMO
    enabled = select(ProviderRow).where(ProviderRow.enabled, is_real).order_by(ProviderRow.id)
    rows = await store.read(lambda session: list(session.scalars(enabled)))
    if not rows:
        has_users = await store.read(lambda session: session.scalar(select(User.id).limit(1)) is not None)
        local = LocalModel(config.local, data_dir)
        if not has_users:
            return await _first_start(config, data_dir, environ)
        return [_no_model(local.unavailable_reason())]
    secret = _existing_secret(config, data_dir)
    guard = AddressGuard(store, config.providers.allow_private)
    transport = Transport(config.providers, guard)
    client = ModelClient(transport, config.providers)
    service = ProviderService(
        store,
        Vault(secret or "x" * MIN_SECRET_BYTES, previous=config.app.previous_secret_keys),
        client,
        guard,
    )
    try:
        return await asyncio.gather(
            *(
                _local(config, data_dir)
                if row.provider_type == LOCAL
                else _provider(service, row, has_secret=bool(secret))
                for row in rows
            )
        )
    finally:
        await transport.aclose()


def _environment_keys(
    session: Session, config: Config, secret: str, environ: Mapping[str, str]
) -> list[Finding]:
    """What becomes of keys in the environment that no provider uses. The first start has other findings."""
    operator = first_operator(session)
    if operator is None or has_no_provider(session, operator.id):
        return []
    vault = Vault(secret, previous=config.app.previous_secret_keys) if secret else None
    return [
        ok(f"provider {one.name}", f"{one.source} is set and not used: {one.problem}")
        if one.problem
        else ok(f"provider {one.name}", f"the next start connects {one.source}")
        for one in unused_keys(session, vault, operator, environ)
    ]


def _existing_secret(config: Config, data_dir: Path) -> str:
    """The existing secret, or an empty string: the doctor creates none."""
    if config.app.secret_key:
        return config.app.secret_key
    try:
        return (data_dir / SECRET_FILE).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


async def _local(config: Config, data_dir: Path) -> Finding:
    part = f"provider {LOCAL}"
    local = LocalModel(config.local, data_dir)
    unavailable_reason = local.unavailable_reason()
    if unavailable_reason:
        fix = "pull it with `luxx model pull smollm2`, or disable this provider"
        return bad(part, unavailable_reason, fix)
    return ok(part, f"the embedded model {local.model_name} is ready to start")


async def _provider(service: ProviderService, row: ProviderRow, *, has_secret: bool) -> Finding:
    """Requests the provider's list of models with the rights of its owner."""
    part, fix = f"provider {row.name}", f"GET /providers/{row.id}, fix it there, and test it again"
    if row.api_key and not has_secret:
        text = "its key is encrypted and the secret key is missing"
        return bad(part, text, "set the old app.secret_key, or enter the key again")
    owner = Caller(
        user_id=row.user_id,
        tenant_id=row.tenant_id,
        username="",
        permission_level=CommandPermission.READ_ONLY,
        sign_in_id="",
    )
    try:
        async with asyncio.timeout(PROVIDER_SECONDS):
            offered = await service.list_models(owner, row.id)
    except LuxxError as error:
        return bad(part, redact(error.message), fix)
    except TimeoutError:
        text = f"did not list its models within {PROVIDER_SECONDS:.0f} s"
        return bad(part, text, fix)
    return ok(part, f"answers and offers {len(offered.models)} models")
