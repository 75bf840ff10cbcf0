"""Checks of `luxx doctor` on secrets, permissions, registration, MCP servers, the sandbox and skills."""

import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.app.cli.doctor.deployment import is_container
from luxx.app.cli.doctor.runtime import Finding, bad, ok
from luxx.domain.accounts.tenants import tenant_ids_by_name
from luxx.domain.mcp.approval import McpDefinitions
from luxx.domain.mcp.server import ServerState
from luxx.domain.mcp.service import McpServers, McpStatus
from luxx.domain.skills.registry import read_skills
from luxx.errors import ConfigError, LuxxError
from luxx.infra.config.schema import Config, SkillsConfig
from luxx.infra.data_permissions import SecuredPaths, paths_open_to_others
from luxx.infra.secrets import MIN_SECRET_BYTES, SECRET_FILE, Vault, is_too_short
from luxx.infra.store.engine import Store, resolve_url, sqlite_file
from luxx.providers.queries import has_no_daily_limit, open_registration_warning, secret_key_problem
from luxx.tools.sandbox.choosing import BackendStatus
from luxx.tools.sandbox.service import Sandbox, installed_packages


def examine_secret(config: Config, data_dir: Path) -> Finding:
    """The source of the secret key, its length and the mode of its file."""
    part, file = "secret", data_dir / SECRET_FILE
    configured = config.app.secret_key
    if configured:
        if not is_too_short(configured):
            return ok(part, "app.secret_key is set")
        text = f"app.secret_key has {len(configured.encode())} bytes and needs {MIN_SECRET_BYTES}"
        return bad(part, text, "create one with `openssl rand -hex 32`")
    if config.database.type == "postgresql":
        text = "app.secret_key is not set; with PostgreSQL every server needs it, with the same value"
        return bad(part, text, "put `openssl rand -hex 32` into APP_SECRET_KEY")
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except FileNotFoundError:
        return ok(part, f"not set; the first start creates one in {file}")
    except OSError as error:
        return bad(part, f"{file}: {error.strerror}", f"let the server read {file}")
    if mode & 0o077:
        return bad(part, f"other users can read {file} (mode {mode:04o})", f"chmod 600 {file}")
    return ok(part, f"stored in {file}, readable by its owner only")


def examine_permissions(config: Config, data_dir: Path) -> list[Finding]:
    """The stored files that other users of this machine may read."""
    try:
        database = sqlite_file(resolve_url(config.database.url, data_dir))
    except LuxxError:
        return []  # The finding about the database reports it.
    paths = SecuredPaths(data_dir=data_dir, database=database, workspaces=Path(config.workspace.root))
    open_paths = [shlex.quote(str(path)) for path in paths_open_to_others(paths)]
    if not open_paths:
        return [ok("permissions", "other users of this machine cannot read the stored data")]
    shown = ", ".join(open_paths[:3]) + (" and more" if len(open_paths) > 3 else "")
    text = f"other users of this machine can read or list {shown}"
    rights = "go-rw" if os.geteuid() == 0 else "go-rwx"
    fix = f"chmod {rights} {' '.join(open_paths[:3])}, or start Luxx as their owner, which does it"
    return [bad("permissions", text, fix)]


def examine_sealed_keys(session: Session, config: Config, secret: str) -> list[Finding]:
    """A finding if the secret key cannot decrypt the stored provider keys."""
    if not secret:
        return []  # The findings about the providers report the missing key.
    problem = secret_key_problem(session, Vault(secret, previous=config.app.previous_secret_keys))
    if problem is None:
        return []
    text, _, fix = problem.partition("; ")
    return [bad("secret key", text, fix)]


def examine_registration(session: Session, config: Config) -> list[Finding]:
    """A finding if newly registered users may spend without a limit."""
    text = open_registration_warning(session, config.auth, config.limits)
    if text is None:
        return []
    fix = "set limits.tokens_per_day or limits.cost_per_day, or auth.allow_registration to false"
    is_bad = has_no_daily_limit(config.auth, config.limits)
    return [Finding(part="registration", is_bad=is_bad, text=text, fix=fix if is_bad else "")]


_MCP_FIX = "fix mcp.servers, or the program it names"
_APPROVAL_FIX = "read the changes at GET /mcp/changes and approve them there, or fix the server"


async def examine_mcp(config: Config, store: Store) -> list[Finding]:
    """Starts each MCP server, lists its tools and ends it, even if a Luxx server runs it already."""
    if not config.mcp.servers:
        return []
    try:
        sandbox = Sandbox(config.tools, Path(config.data_dir), Path(config.workspace.root))
    except ConfigError:
        return []  # The finding about the sandbox reports it.

    async def tenants() -> Mapping[str, int]:
        try:
            return await store.read(tenant_ids_by_name)
        except SQLAlchemyError:
            return {}

    await sandbox.open()
    definitions = McpDefinitions(store, is_read_only=True)
    servers = McpServers(config, sandbox, tenants, definitions.compare_and_record)
    try:
        return [_mcp_finding(status) for status in await servers.try_all()]
    finally:
        await servers.close()
        await sandbox.close()


def _mcp_finding(status: McpStatus) -> Finding:
    part = f"mcp {status.tenant}/{status.name}"
    if status.state != ServerState.RUNNING:
        printed = f"; it printed: {' / '.join(status.output.splitlines())}" if status.output else ""
        return bad(part, (status.reason or "does not start") + printed, _MCP_FIX)
    if status.withheld:
        text = f"offers {status.tools} tools; withheld: {'; '.join(status.withheld[:5])}"
        return bad(part, text, _APPROVAL_FIX)
    left_out = f"; left out: {'; '.join(status.left_out[:5])}" if status.left_out else ""
    return ok(part, f"starts and offers {status.tools} tools{left_out}")


SANDBOX_PART = "sandbox"
NETWORK_PART = "network"
READERS_PART = "readers"
_SANDBOX_FIX = (
    "allow unprivileged user namespaces, for bubblewrap, or use a kernel of 6.2 or later with Landlock"
)
_CONTAINER_FIX = (
    "use Docker 23 or later, containerd 1.6 or later, on a kernel of 6.2 or later with Landlock, or allow "
    "namespaces and an unmasked /proc, as docs/operate/deployment.md says"
)


async def examine_sandbox(config: Config) -> list[Finding]:
    """Tries the sandbox backends like a server start does. Creates no file."""
    try:
        sandbox = Sandbox(config.tools, Path(config.data_dir), Path(config.workspace.root))
    except ConfigError as error:
        return [bad(SANDBOX_PART, error.message, "set tools.sandbox to auto")]
    await sandbox.open()
    await sandbox.readers.open()
    others = "; ".join(
        f"{report.name}: {report.reason}" + (f" ({report.output})" if report.output else "")
        for report in sandbox.reports
        if report.standing != BackendStatus.IN_FORCE
    )
    findings = [_backend_finding(sandbox, others), _readers_finding(sandbox)]
    return [*findings, *_network_findings(sandbox), *_python_findings(sandbox, config)]


def _backend_finding(sandbox: Sandbox, others: str) -> Finding:
    if sandbox.is_unprotected:
        text = "none, as set in tools.sandbox: programs that tools start have all rights of the Luxx process"
        return bad(SANDBOX_PART, text, "set tools.sandbox to auto")
    if sandbox.backend_name == "none":
        fix = _CONTAINER_FIX if is_container(os.environ) else _SANDBOX_FIX
        return bad(SANDBOX_PART, f"no backend works, so no tool starts a program ({others})", fix)
    return ok(SANDBOX_PART, f"{sandbox.backend_name} is active ({others})")


def _readers_finding(sandbox: Sandbox) -> Finding:
    readers = sandbox.readers
    if readers.problem:
        text = f"web pages and PDFs are parsed outside the sandbox, as the server's user ({readers.problem})"
        fix = "make the directories of Luxx and its Python readable for all users"
        return bad(READERS_PART, text, fix)
    if readers.backend_name == "none":
        text = "processes of the server's user parse web pages and PDFs, with limits but without a sandbox"
        return ok(READERS_PART, text)
    return ok(READERS_PART, f"web pages and PDFs are parsed in {readers.backend_name}")


def _network_findings(sandbox: Sandbox) -> list[Finding]:
    egress = sandbox.egress
    if not egress.is_configured or (sandbox.backend_name == "none" and not sandbox.is_unprotected):
        return []
    if egress.problem:
        return [bad(NETWORK_PART, egress.problem, "use bubblewrap, or empty tools.network_allow")]
    return [ok(NETWORK_PART, f"programs can reach only {', '.join(egress.hosts)}")]


def _python_findings(sandbox: Sandbox, config: Config) -> list[Finding]:
    if sandbox.backend_name == "none" and not sandbox.is_unprotected:
        return []
    if sandbox.interpreter is None:
        text = "no Python that was found starts in the sandbox"
        if config.tools.python:
            text = f"tools.python, {config.tools.python}, does not start in the sandbox"
        return [bad("python", text, "set tools.python to one that all users may run")]
    findings = [ok("python", f"python_execute runs {sandbox.interpreter.program}")]
    required, present = sorted(config.tools.packages), installed_packages(sandbox.packages)
    if required != present:
        required_names, installed_names = (", ".join(names) or "none" for names in (required, present))
        text = f"tools.packages lists {required_names}, installed are {installed_names}"
        findings.append(bad("packages", text, "luxx packages"))
    return findings


SKILLS_PART = "skills"


def examine_skills(config: Config) -> list[Finding]:
    """Reads the skill folders like a server start does."""
    skill_registry = read_skills(config.skills.directories, Path(config.data_dir))
    findings = [
        bad(SKILLS_PART, f"{skill.name}: {skill.problem}", "fix its SKILL.md, then restart the server")
        for skill in skill_registry.broken
    ]
    # The default directory is optional.
    if config.skills.directories != SkillsConfig().directories:
        findings += [
            bad(SKILLS_PART, f"{name} does not exist", "fix skills.directories")
            for name in skill_registry.missing
        ]
    if skill_registry.skills:
        findings.insert(0, ok(SKILLS_PART, f"available: {', '.join(skill_registry.skills)}"))
    return findings
