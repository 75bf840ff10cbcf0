"""Checks of `luxx doctor` on the machine: in a container, as a unit of systemd, behind a proxy; secrets,
permissions, registration, MCP servers, the sandbox and skills.
"""

import asyncio
import os
import re
import shlex
import shutil
import stat
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path

import httpx
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.app.cli.doctor.runtime import Finding, bad, ok
from luxx.domain.accounts.tenants import tenant_ids_by_name
from luxx.domain.mcp.approval import McpDefinitions
from luxx.domain.mcp.server import ServerState
from luxx.domain.mcp.service import McpServers, McpStatus
from luxx.domain.skills.registry import read_skills
from luxx.errors import ConfigError, LuxxError
from luxx.infra.children import start_child
from luxx.infra.config.schema import Config, SkillsConfig
from luxx.infra.data_permissions import SecuredPaths, paths_open_to_others
from luxx.infra.secrets import MIN_SECRET_BYTES, SECRET_FILE, Vault, is_too_short
from luxx.infra.store.engine import Store, resolve_url, sqlite_file
from luxx.providers.queries import has_no_daily_limit, open_registration_warning, secret_key_problem
from luxx.tools.sandbox.choosing import BackendStatus
from luxx.tools.sandbox.service import Sandbox, installed_packages

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman put into each container."""

MOUNTS = Path("/proc/self/mountinfo")
LAYERED = ("overlay", "fuse.fuse-overlayfs")
"""File systems whose changes are deleted with their container."""

UNIT = "luxx.service"
QUERY_SECONDS = 5.0
FORWARDS = re.compile(r"^luxx_untrusted_forwards_total (\S+)$", re.MULTILINE)

BREAKING_DIRECTIVES = {
    "RestrictNamespaces": ("no", "bubblewrap does not work in it"),
    "ProtectHostname": ("no", "bubblewrap does not work in it"),
    "ProtectKernelTunables": ("no", "bubblewrap does not work in it with newer versions of systemd"),
    "ProtectKernelLogs": ("no", "bubblewrap does not work in it with newer versions of systemd"),
    "ProcSubset": ("all", "tools start no program in it"),
    "MemoryDenyWriteExecute": ("no", "Node.js crashes in it, and MCP servers with it"),
}
"""By the directive: its harmless value, and what another one breaks; as in docs/operate/deployment.md."""

NEEDED_CALLS = ("unshare", "mount", "pivot_root", "sethostname")
"""System calls of bubblewrap that filters of systemd usually lack."""


def is_container(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("container")) or any(Path(mark).exists() for mark in CONTAINER_MARKS)


def examine_container(config: Config, data_dir: Path, environ: Mapping[str, str]) -> list[Finding]:
    """A finding if data is deleted with the container, and one if Luxx is root in a container."""
    findings: list[Finding] = []
    try:
        mounts = MOUNTS.read_text("utf-8", "replace")
    except OSError:
        mounts = ""
    # Who uses the temporary directory knows that it does not last.
    temporary = tempfile.gettempdir()
    paths = [path.absolute() for path in (data_dir, Path(config.workspace.root))]
    lost = [
        path for path in paths if is_in_container_layer(path, mounts) and not path.is_relative_to(temporary)
    ]
    if lost:
        text = f"{' and '.join(str(path) for path in lost)} are deleted with the container"
        findings.append(bad("volume", text, "mount a volume at each of them (docker run --volume)"))
    if os.geteuid() == 0 and is_container(environ):
        fix = "run it as an ordinary user, such as 10001 of the image (docker run --user 10001:10001)"
        findings.append(ok("container", "Luxx runs as root in a container", fix))
    return findings


def is_in_container_layer(path: Path, mounts: str) -> bool:
    """Whether the path is on the layered root of a container. `mounts`: the text of /proc/self/mountinfo."""
    path = path.absolute()
    found = (Path("/"), "")
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), head.split(" ")[4]))
        # Of several mounts at one point, the last is on top.
        if path.is_relative_to(point) and len(point.parts) >= len(found[0].parts):
            found = (point, tail.split(" ")[0])
    return found[0] == Path("/") and found[1] in LAYERED


async def examine_unit() -> list[Finding]:
    """The directives of the unit that break the sandbox. Luxx in the unit may have less than the doctor."""
    program = shutil.which("systemctl")
    if program is None:
        return []
    names = ",".join(("LoadState", "SystemCallFilter", *BREAKING_DIRECTIVES))
    command = (program, "show", UNIT, f"--property={names}")
    try:
        process = await start_child(*command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    except OSError:
        return []
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            stdout, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return []
    shown = dict(line.split("=", 1) for line in stdout.decode(errors="replace").splitlines() if "=" in line)
    if shown.get("LoadState") != "loaded":
        return []
    return unit_findings(shown)


def unit_findings(shown: Mapping[str, str]) -> list[Finding]:
    """The findings about what `systemctl show` prints of a loaded unit."""
    broken = [
        f"{name}={shown[name]}, so {effect}"
        for name, (harmless, effect) in BREAKING_DIRECTIVES.items()
        if shown.get(name, harmless) != harmless
    ]
    filtered = shown.get("SystemCallFilter", "")
    calls = filtered.removeprefix("~").split()
    refused = [name for name in NEEDED_CALLS if (name in calls) == filtered.startswith("~")]
    if filtered and refused:
        broken.append(f"SystemCallFilter= refuses {', '.join(refused)}, so bubblewrap does not work in it")
    if not broken:
        return [ok("unit", f"{UNIT} sets no directive that breaks the sandbox")]
    fix = "remove it from the unit; docs/operate/deployment.md has one that works"
    return [bad("unit", f"{UNIT} sets {one}", fix) for one in broken]


async def examine_proxy(config: Config) -> list[Finding]:
    """Whether a proxy is in use that is not trusted, or everybody is trusted."""
    trusted = config.server.trusted_proxies
    try:
        networks = [ip_network(network, strict=False) for network in trusted]
    except ValueError as error:
        return [bad("proxy", f"server.trusted_proxies: {error}", "write addresses or networks")]
    if any(network.prefixlen == 0 for network in networks):
        text = (
            "server.trusted_proxies contains every address, so each client can choose the one that Luxx sees"
        )
        return [bad("proxy", text, "name only the addresses of the proxy")]
    count = await _untrusted_forwards(config)
    if count:
        text = (
            f"{count} requests had X-Forwarded-For, from an address that is not in server.trusted_proxies; "
            "all clients of a proxy there share one address"
        )
        fix = "add the proxy, which the log names (untrusted_proxy), to server.trusted_proxies"
        return [ok("proxy", text, fix)]
    return [ok("proxy", f"X-Forwarded-For of {', '.join(trusted)} is used")] if trusted else []


async def _untrusted_forwards(config: Config) -> int:
    """The number that the running server counted; 0 if none answers."""
    if not config.app.port:
        return 0
    host = next((name for name in config.server.allowed_hosts if "*" not in name), "127.0.0.1")
    url = f"http://127.0.0.1:{config.app.port}/metrics"
    try:
        async with httpx.AsyncClient(
            timeout=QUERY_SECONDS, trust_env=False, verify=False
        ) as client:  # no HTTPS
            answer = await client.get(url, headers={"host": host})
    except httpx.HTTPError:
        return 0
    counted = FORWARDS.search(answer.text)
    return int(float(counted[1])) if counted else 0


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
