"""What `luxx doctor` says of the sandbox: the backend in force, why not the others, which Python."""

from pathlib import Path

from luxx.checkup import Finding
from luxx.config import Config
from luxx.errors import ConfigError
from luxx.tools.sandbox.choosing import BackendReport, Standing
from luxx.tools.sandbox.packages import installed
from luxx.tools.sandbox.service import Sandbox

PART = "sandbox"
NETWORK = "network"
READERS = "readers"
_MEND = (
    "let unprivileged users make namespaces, for bubblewrap, or use a kernel of 6.2 or later with Landlock"
)


async def examine_sandbox(config: Config) -> list[Finding]:
    """Tries the backends as a start does; makes no file."""
    try:
        sandbox = Sandbox(config.tools, Path(config.data_dir), Path(config.workspace.root))
    except ConfigError as error:
        return [Finding(part=PART, is_bad=True, text=error.message, mend="set tools.sandbox to auto")]
    await sandbox.open()
    await sandbox.readers.open()
    others = "; ".join(_told(one) for one in sandbox.reports if one.standing != Standing.IN_FORCE)
    return [_in_force(sandbox, others), _readers(sandbox), *_network(sandbox), *_python(sandbox, config)]


def _in_force(sandbox: Sandbox, others: str) -> Finding:
    if sandbox.is_unprotected:
        text = "none, as tools.sandbox says: programs that tools start can do all that Luxx may"
        return Finding(part=PART, is_bad=True, text=text, mend="set tools.sandbox to auto")
    if sandbox.in_force == "none":
        return Finding(
            part=PART,
            is_bad=True,
            text=f"no backend works, so no tool starts a program ({others})",
            mend=_MEND,
        )
    return Finding(part=PART, text=f"{sandbox.in_force} is in force ({others})")


def _readers(sandbox: Sandbox) -> Finding:
    readers = sandbox.readers
    if readers.problem:
        text = f"pages and PDFs are read outside of the sandbox, as the server's user ({readers.problem})"
        mend = "let everybody read the directories of Luxx and of its Python"
        return Finding(part=READERS, is_bad=True, text=text, mend=mend)
    if readers.held_by == "none":
        text = "pages and PDFs are read by processes of the server's user within limits, without a sandbox"
        return Finding(part=READERS, text=text)
    return Finding(part=READERS, text=f"pages and PDFs are read in {readers.held_by}")


def _network(sandbox: Sandbox) -> list[Finding]:
    way_out = sandbox.way_out
    if not way_out.is_wanted or (sandbox.in_force == "none" and not sandbox.is_unprotected):
        return []
    if way_out.problem:
        mend = "use bubblewrap, or empty tools.network_allow"
        return [Finding(part=NETWORK, is_bad=True, text=way_out.problem, mend=mend)]
    return [Finding(part=NETWORK, text=f"programs reach {', '.join(way_out.hosts)}, and nothing else")]


def _told(report: BackendReport) -> str:
    return f"{report.name}: {report.reason}" + (f" ({report.said})" if report.said else "")


def _python(sandbox: Sandbox, config: Config) -> list[Finding]:
    if sandbox.in_force == "none" and not sandbox.is_unprotected:
        return []
    if sandbox.interpreter is None:
        asked = f"tools.python, {config.tools.python}," if config.tools.python else "none that was found"
        text = f"no Python runs in the sandbox: {asked} does not start there"
        return [
            Finding(
                part="python", is_bad=True, text=text, mend="set tools.python to one that everybody may run"
            )
        ]
    findings = [Finding(part="python", text=f"python_execute runs {sandbox.interpreter.program}")]
    wanted, there = sorted(config.tools.packages), installed(sandbox.packages)
    if wanted != there:
        asked, found = (", ".join(one) or "none" for one in (wanted, there))
        text = f"tools.packages asks for {asked}, installed are {found}"
        findings.append(Finding(part="packages", is_bad=True, text=text, mend="luxx packages"))
    return findings
