"""The embedded model, run for real: it answers, reports problems, is restarted, and ends with its server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from luxx.errors import Unavailable
from luxx.infra.config.schema import LocalConfig
from luxx.providers.local.child import LocalState
from luxx.providers.local.files import find_model
from luxx.providers.local.model import LocalModel

A_SERVER = Path(__file__).with_name("server_process.py")
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def run_model(
    model: Path | str | None, data_dir: Path, keys: dict[str, str] | None = None, **config: Any
) -> AsyncGenerator[LocalModel]:
    local = LocalModel(LocalConfig(model_path=str(model) if model else None, **config), data_dir, keys)
    try:
        yield local
    finally:
        await local.stop()


def file_in(model_data: Path) -> Path:
    model_file = find_model(None, model_data)
    assert model_file is not None
    return model_file


def is_gone(pid: int, seconds: float) -> bool:
    """Whether it ends in time; a zombie counts as ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
    return False


async def test_chat_completion_is_streamed(model_data: Path, tmp_path: Path) -> None:
    keys: dict[str, str] = {}
    async with run_model(file_in(model_data), tmp_path, keys) as local:
        assert local.state is LocalState.STOPPED
        address = await local.ensure_ready(60)
        assert local.state is LocalState.READY
        assert local.base_url == address.base_url
        assert {f"http://{host_port}/v1": key for host_port, key in keys.items()} == {
            address.base_url: address.api_key
        }
        body = {
            "model": local.model_name,
            "stream": True,
            "max_tokens": 16,
            "messages": [{"role": "user", "content": "Say hello."}],
        }
        headers = {"authorization": f"Bearer {address.api_key}"}
        pieces: list[str] = []
        async with (
            httpx.AsyncClient(trust_env=False, timeout=60) as client,
            client.stream(
                "POST", f"{address.base_url}/chat/completions", json=body, headers=headers
            ) as answer,
        ):
            assert answer.status_code == 200
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        for line in lines[:-1]:
            for choice in json.loads(line[6:])["choices"]:
                pieces.append(choice["delta"].get("content") or "")
        assert len([piece for piece in pieces if piece]) > 1


async def test_other_programs_on_the_machine_cannot_use_it(model_data: Path, tmp_path: Path) -> None:
    async with run_model(file_in(model_data), tmp_path) as local:
        address = await local.ensure_ready(60)
        assert address.api_key not in repr(address)
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            answer = await client.get(f"{address.base_url}/models", headers={"origin": "http://a.page"})
            assert answer.status_code == 401
            assert answer.headers.get("access-control-allow-origin", "") == ""
        child = psutil.Process(local.pid)
        assert address.api_key not in " ".join(child.cmdline())
        assert address.api_key not in " ".join(child.environ().values())
        assert address.api_key not in local.log_path.read_text()
        assert child.environ()["OMP_WAIT_POLICY"] == "PASSIVE"
        listening = [
            process.laddr.ip for process in child.net_connections("tcp") if process.status == "LISTEN"
        ]
        assert listening == ["127.0.0.1"]


async def test_childs_environment_contains_no_secret_of_the_server(
    model_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-children")

    async with run_model(file_in(model_data), tmp_path) as local:
        await local.ensure_ready(60)
        assert "OPENAI_API_KEY" not in psutil.Process(local.pid).environ()


async def test_stopping_ends_the_child_and_nothing_starts_it_again(model_data: Path, tmp_path: Path) -> None:
    keys: dict[str, str] = {}
    async with run_model(file_in(model_data), tmp_path, keys) as local:
        await local.ensure_ready(60)
        pid = local.pid
        assert pid is not None
        await local.stop()
        assert is_gone(pid, 3)
        assert (local.base_url, keys) == (None, {})
        with pytest.raises(Unavailable, match="shut down"):
            await local.ensure_ready(1)


async def test_killed_child_is_replaced_by_another(model_data: Path, tmp_path: Path) -> None:
    async with run_model(file_in(model_data), tmp_path) as local:
        first = await local.ensure_ready(60)
        pid = local.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        second = await local.ensure_ready(60)
        while second.api_key == first.api_key:
            await asyncio.sleep(0.01)
            second = await local.ensure_ready(60)
        assert local.pid != pid
        async with httpx.AsyncClient(trust_env=False) as client:
            health = await client.get(second.base_url.removesuffix("/v1") + "/health")
            assert health.status_code == 200


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is of Unix")
@pytest.mark.parametrize("moment", ["ready", "early"])
def test_child_is_gone_within_three_seconds_of_its_server_being_killed(
    model_data: Path, tmp_path: Path, moment: str
) -> None:
    command = [sys.executable, str(A_SERVER), str(tmp_path), str(file_in(model_data)), moment]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as server:
        try:
            assert server.stdout is not None
            said = next(line for line in server.stdout if line.startswith("child "))
            child = int(said.removeprefix("child "))
            assert psutil.pid_exists(child)
        finally:
            server.kill()
    assert is_gone(child, 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello, this is no model", "invalid magic"),
        (b"GGUF\x03\x00\x00\x00" + b"\x01" * 64, "cannot be run"),
    ],
)
async def test_broken_file_is_reported_with_the_reason(
    model_data: Path, tmp_path: Path, content: bytes, reason: str
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content)

    async with run_model(broken, tmp_path) as local:
        with pytest.raises(Unavailable, match=reason):
            await local.ensure_ready(60)
        assert local.state is LocalState.FAILED
        assert reason in local.reason
        assert "broken.gguf" in local.reason


async def test_a_missing_part_is_reported_at_once(model_data: Path, tmp_path: Path) -> None:
    for config, model, reason in (
        ({"enabled": False}, None, "disabled"),
        ({}, None, "luxx model pull"),
        ({}, tmp_path / "none.gguf", "does not exist"),
    ):
        async with run_model(model, tmp_path, **config) as local:
            assert reason in (local.unavailable_reason() or "")
            with pytest.raises(Unavailable, match=reason):
                await local.ensure_ready(5)


async def test_failed_start_is_tried_again_once_the_file_is_there(
    model_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luxx.providers.local.child.RETRY_SECONDS", 0.0)

    model = tmp_path / "mine.gguf"
    async with run_model(model, tmp_path) as local:
        with pytest.raises(Unavailable, match="does not exist"):
            await local.ensure_ready(5)
        model.symlink_to(file_in(model_data).absolute())
        assert (await local.ensure_ready(60)).base_url
        assert local.model_name == "mine"


async def test_start_returns_before_anything_is_loaded(model_data: Path, tmp_path: Path) -> None:
    async with run_model(file_in(model_data), tmp_path) as local:
        local.start()
        local.start()
        assert local.state is LocalState.STARTING
        with pytest.raises(Unavailable, match="not ready"):
            await local.ensure_ready(0.001)
        addresses = await asyncio.gather(*[local.ensure_ready(60) for _ in range(5)])
        assert len({address.base_url for address in addresses}) == 1
