"""Checks of `luxx doctor` on where the server runs: in a container, as a unit of systemd, behind a proxy."""

import asyncio
import os
import re
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path

import httpx

from luxx.app.cli.doctor.runtime import Finding, bad, ok
from luxx.infra.children import start_child
from luxx.infra.config.schema import Config

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
