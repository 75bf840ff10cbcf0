"""Runs the steps of the Dockerfile in directory trees, without Docker: as root, in Linux namespaces.

The base image is this machine's system with the Python of the tests as `/usr/local`. Each stage is an overlay
above it, so nothing of the machine changes. What Docker itself does (layers, pulling, its own filter of
system calls) is not tested.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from process_environment import ROOT

BUILD_SECONDS = 600.0
IGNORED = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
IGNORED_ANYWHERE = [line.removeprefix("**/") for line in IGNORED if line.startswith("**/")]
BASE = re.compile(r"python:(\d+\.\d+)-slim-bookworm")
PASSED_ON = re.compile(r"^(PIP_|HTTPS?_PROXY$|NO_PROXY$|https?_proxy$|no_proxy$|SSL_CERT_FILE$)")
"""What the build takes from the environment: where this machine finds packages."""

# Makes the tree of a stage the root of a mount namespace. Not with chroot, below which the kernel creates no
# user namespaces.
ENTER = """
set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$STAGE/upper,workdir=$STAGE/work" "$STAGE/root"
cd "$STAGE/root"
mount --bind "$PYTHON_PREFIX" usr/local
mount --rbind /dev dev
mount -t proc proc proc
mount --bind "$STAGE/tmp" tmp
mount -t tmpfs tmpfs run
if [ -n "$CACHE" ]; then mkdir -p "$CACHE" root/.cache/pip; mount --bind "$CACHE" root/.cache/pip; fi
for volume in $VOLUMES; do mount --bind "$STAGE/volumes$volume" ".$volume"; done
eval "$PREPARE"
mkdir -p .before
pivot_root . .before
umount -l /.before
cd "$DIRECTORY"
eval "$LIMIT"
exec "$@"
"""


class Stage:
    """One `FROM` of the Dockerfile: a tree, and what the instructions have set so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
        }
        self.directory = "/"
        self.user = ""
        self.volumes: list[str] = []
        self.ports: list[str] = []
        self.command: list[str] = []
        self.health_command: list[str] = []
        for name in ("upper", "work", "root", "tmp"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "tmp").chmod(0o1777)

    def enter(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        namespaces: Sequence[str] = (),
        prepare: str = "",
        limit: str = "",
        cache: str = "",
        with_volumes: bool = False,
    ) -> tuple[list[str], dict[str, str]]:
        """The command line and environment that run `command` in the tree as root."""
        settings = {
            "STAGE": str(self.folder),
            "PYTHON_PREFIX": sys.base_prefix,
            "DIRECTORY": self.directory,
            "VOLUMES": " ".join(self.volumes) if with_volumes else "",
            "PREPARE": prepare,
            "LIMIT": limit,
            "CACHE": cache,
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }
        inner = ["env", "-i", *(f"{name}={value}" for name, value in {**self.environ, **environ}.items())]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *namespaces]
        return [*unshare, "sh", "-c", ENTER, "sh", *inner, *command], settings


class Image:
    """The built Dockerfile: `final` is its last stage."""

    def __init__(self, dockerfile: Path, context: Path, folder: Path) -> None:
        self._context = context
        self._folder = folder
        self._arguments: dict[str, str] = {}
        self._stages: dict[str, Stage] = {}
        for name, rest in instructions(dockerfile):
            handle = getattr(self, f"_{name.lower()}", None)
            assert handle is not None, f"the Dockerfile has {name}, which this test cannot run"
            handle(rest)

    @property
    def final(self) -> Stage:
        return list(self._stages.values())[-1]

    def _arg(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self._arguments[name] = value

    def _from(self, rest: str) -> None:
        words = self._with_arguments(rest).split()
        assert BASE.fullmatch(words[0]), words[0]
        name = words[2] if len(words) == 3 else str(len(self._stages))
        self._stages[name] = Stage(self._folder / name)
        # As in the base image, so that its Python finds its own library.
        self._run_in_stage(["ldconfig"])

    def _with_arguments(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda match: self._arguments[match[1]], text)

    def _workdir(self, rest: str) -> None:
        self.final.directory = "/"
        self._run_in_stage(["mkdir", "-p", rest])
        self.final.directory = rest

    def _copy(self, rest: str) -> None:
        words = rest.split()
        sources = self._context
        if words[0].startswith("--from="):
            sources = self._stages[words.pop(0).removeprefix("--from=")].folder / "upper"
        *names, target = words
        ignored = is_ignored if sources == self._context else None
        into = self.final.folder / "upper" / (Path(self.final.directory) / target).relative_to("/")
        into.parent.mkdir(parents=True, exist_ok=True)
        for name in names:
            source = sources / name.lstrip("/")
            assert ignored is None or not ignored(name), f".dockerignore leaves out {name}"
            if source.is_dir():
                skipped = shutil.ignore_patterns(*IGNORED_ANYWHERE) if ignored else None
                shutil.copytree(source, into, symlinks=True, ignore=skipped)
            else:
                shutil.copy2(source, into / source.name if target.endswith("/") else into)

    def _run(self, rest: str) -> None:
        cache = ""
        if rest.startswith("--mount="):
            mount, rest = rest.split(maxsplit=1)
            assert mount == "--mount=type=cache,target=/root/.cache/pip", mount
            cache = str(Path("~/.cache/pip").expanduser())
        assert not self.final.user, "steps after USER are not tested"
        self._run_in_stage(["sh", "-c", rest], cache)

    def _run_in_stage(self, command: list[str], cache: str = "") -> None:
        passed_on = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        line, environ = self.final.enter(command, passed_on, cache=cache)
        finished = subprocess.run(
            line, env=environ, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
        assert finished.returncode == 0, f"{command}\n{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}"

    def _env(self, rest: str) -> None:
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            self.final.environ[name] = value.replace("$PATH", self.final.environ["PATH"])

    def _user(self, rest: str) -> None:
        self.final.user = rest

    def _volume(self, rest: str) -> None:
        """An empty volume of Docker takes over the owner and the mode of the directory."""
        self.final.volumes = json.loads(rest)
        for volume in self.final.volumes:
            made = self.final.folder / f"upper{volume}"
            target = self.final.folder / f"volumes{volume}"
            target.mkdir(parents=True)
            os.chown(target, made.stat().st_uid, made.stat().st_gid)
            target.chmod(made.stat().st_mode)

    def _expose(self, rest: str) -> None:
        self.final.ports = rest.split()

    def _healthcheck(self, rest: str) -> None:
        self.final.health_command = json.loads(rest.partition(" CMD ")[2])

    def _cmd(self, rest: str) -> None:
        self.final.command = json.loads(rest)


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions in order, each with the rest of its line, which may be continued."""
    lines = [line for line in dockerfile.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def is_ignored(name: str) -> bool:
    """Whether .dockerignore leaves out a name at the top."""
    return f"!{name}" not in IGNORED
