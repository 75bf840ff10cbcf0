"""Checks of `luxx doctor` on MCP servers, the sandbox, its Python and packages, and skills."""

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from luxx.app.cli.doctor.runtime import Finding
from luxx.domain.accounts.tenants import ids_by_name
from luxx.domain.mcp.approval import Definitions
from luxx.domain.mcp.server import ServerState
from luxx.domain.mcp.service import McpServers, McpStatus
from luxx.domain.skills.registry import read_skills
from luxx.errors import ConfigError
from luxx.infra.config.schema import Config, SkillsConfig
from luxx.infra.store.engine import Store
from luxx.tools.core import ToolRegistry
from luxx.tools.sandbox.choosing import BackendReport, BackendStatus
from luxx.tools.sandbox.packages import installed
from luxx.tools.sandbox.service import Sandbox

_MCP_FIX = "fix mcp.servers, or the program it names"
_APPROVE = "read the changes at GET /mcp/changes and approve them there, or fix the server"


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
            return await store.read(ids_by_name)
        except SQLAlchemyError:
            return {}

    await sandbox.open()
    definitions = Definitions(store, is_read_only=True)
    servers = McpServers(config, sandbox, ToolRegistry(), tenants, definitions.withheld)
    try:
        return [_finding(one) for one in await servers.try_all()]
    finally:
        await servers.close()
        await sandbox.close()


def _finding(status: McpStatus) -> Finding:
    part = f"mcp {status.tenant}/{status.name}"
    if status.state != ServerState.RUNNING:
        return Finding(part=part, is_bad=True, text=status.reason or "does not start", fix=_MCP_FIX)
    if status.withheld:
        text = f"offers {status.tools} tools; withheld: {'; '.join(status.withheld[:5])}"
        return Finding(part=part, is_bad=True, text=text, fix=_APPROVE)
    left_out = f"; left out: {'; '.join(status.left_out[:5])}" if status.left_out else ""
    return Finding(part=part, text=f"starts and offers {status.tools} tools{left_out}")


SANDBOX_PART = "sandbox"
NETWORK = "network"
READERS = "readers"
_SANDBOX_FIX = (
    "allow unprivileged user namespaces, for bubblewrap, or use a kernel of 6.2 or later with Landlock"
)


async def examine_sandbox(config: Config) -> list[Finding]:
    """Tries the sandbox backends like a server start does. Creates no file."""
    try:
        sandbox = Sandbox(config.tools, Path(config.data_dir), Path(config.workspace.root))
    except ConfigError as error:
        return [Finding(part=SANDBOX_PART, is_bad=True, text=error.message, fix="set tools.sandbox to auto")]
    await sandbox.open()
    await sandbox.readers.open()
    others = "; ".join(_report_text(one) for one in sandbox.reports if one.standing != BackendStatus.IN_FORCE)
    return [_in_force(sandbox, others), _readers(sandbox), *_network(sandbox), *_python(sandbox, config)]


def _in_force(sandbox: Sandbox, others: str) -> Finding:
    if sandbox.is_unprotected:
        text = "none, as set in tools.sandbox: programs that tools start have all rights of the Luxx process"
        return Finding(part=SANDBOX_PART, is_bad=True, text=text, fix="set tools.sandbox to auto")
    if sandbox.backend_name == "none":
        return Finding(
            part=SANDBOX_PART,
            is_bad=True,
            text=f"no backend works, so no tool starts a program ({others})",
            fix=_SANDBOX_FIX,
        )
    return Finding(part=SANDBOX_PART, text=f"{sandbox.backend_name} is active ({others})")


def _readers(sandbox: Sandbox) -> Finding:
    readers = sandbox.readers
    if readers.problem:
        text = f"web pages and PDFs are parsed outside the sandbox, as the server's user ({readers.problem})"
        fix = "make the directories of Luxx and its Python readable for all users"
        return Finding(part=READERS, is_bad=True, text=text, fix=fix)
    if readers.backend_name == "none":
        text = "processes of the server's user parse web pages and PDFs, with limits but without a sandbox"
        return Finding(part=READERS, text=text)
    return Finding(part=READERS, text=f"web pages and PDFs are parsed in {readers.backend_name}")


def _network(sandbox: Sandbox) -> list[Finding]:
    egress = sandbox.egress
    if not egress.is_configured or (sandbox.backend_name == "none" and not sandbox.is_unprotected):
        return []
    if egress.problem:
        fix = "use bubblewrap, or empty tools.network_allow"
        return [Finding(part=NETWORK, is_bad=True, text=egress.problem, fix=fix)]
    return [Finding(part=NETWORK, text=f"programs can reach only {', '.join(egress.hosts)}")]


def _report_text(report: BackendReport) -> str:
    return f"{report.name}: {report.reason}" + (f" ({report.output})" if report.output else "")


def _python(sandbox: Sandbox, config: Config) -> list[Finding]:
    if sandbox.backend_name == "none" and not sandbox.is_unprotected:
        return []
    if sandbox.interpreter is None:
        text = "no Python that was found starts in the sandbox"
        if config.tools.python:
            text = f"tools.python, {config.tools.python}, does not start in the sandbox"
        return [
            Finding(
                part="python", is_bad=True, text=text, fix="set tools.python to one that all users may run"
            )
        ]
    findings = [Finding(part="python", text=f"python_execute runs {sandbox.interpreter.program}")]
    required, present = sorted(config.tools.packages), installed(sandbox.packages)
    if required != present:
        required_names, installed_names = (", ".join(one) or "none" for one in (required, present))
        text = f"tools.packages lists {required_names}, installed are {installed_names}"
        findings.append(Finding(part="packages", is_bad=True, text=text, fix="luxx packages"))
    return findings


SKILLS_PART = "skills"


def examine_skills(config: Config) -> list[Finding]:
    """Reads the skill folders like a server start does."""
    skill_registry = read_skills(config.skills.directories, Path(config.data_dir))
    findings = [
        Finding(
            part=SKILLS_PART,
            is_bad=True,
            text=f"{one.name}: {one.problem}",
            fix="fix its SKILL.md, then restart the server",
        )
        for one in skill_registry.broken
    ]
    # The default directory is optional.
    if config.skills.directories != SkillsConfig().directories:
        findings += [
            Finding(
                part=SKILLS_PART, is_bad=True, text=f"{name} does not exist", fix="fix skills.directories"
            )
            for name in skill_registry.missing
        ]
    if skill_registry.skills:
        findings.insert(0, Finding(part=SKILLS_PART, text=f"available: {', '.join(skill_registry.skills)}"))
    return findings
