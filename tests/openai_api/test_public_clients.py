"""Other people's clients, with the settings that docs/use/openai-api.md names: each completes a streamed chat
with an image, and with its tools where it has some. `make test-heavy` installs them.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from api.client import KEY
from live_server import ROOT, scripted_models

from luxx.providers.scripted import Call, Counts, Gate, Rule, Script, ScriptedProvider, Text, When
from openai_api.conftest import IMAGE_URL, Person, png
from openai_api.test_chat import WEATHER

INSTALLED = ROOT / ".venv/openai-clients"
PAGE = (ROOT / "docs/use/openai-api.md").read_text("utf-8")
SECONDS = 90.0
EDIT = "greeting.py\n```\nprint('hello from the model')\n```\n"

pytestmark = pytest.mark.heavy


def weather(client: str) -> list[Rule]:
    """A call of a tool; then an answer that goes on once the test has seen its beginning."""
    return [
        Rule(when=When(user=f"weather for {client}", has_tool_result=False), reply=[
            Call(name="get_weather", arguments={"city": "Oslo"}, id="call_a")]),
        Rule(when=When(user=f"weather for {client}"), reply=[
            Text(text="It rains "), Gate(name=client), Text(text="in Oslo."),
            Counts(prompt=30, completion=5)]),
    ]  # fmt: skip


SCRIPT = Script(
    models=["gpt-4.1-mini"],
    rules=[
        *weather("llm"),
        *weather("librechat"),
        Rule(
            when=When(user="greets"),
            reply=[Text(text="A program follows. "), Gate(name="aider"), Text(text=f"\n\n{EDIT}")],
        ),
        Rule(reply=[Text(text="A summary.")]),
    ],
)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    with scripted_models(SCRIPT) as provider:
        yield provider


@pytest.fixture(scope="module")
def person(ann: Person, upstream: ScriptedProvider) -> Person:
    """A user with the provider `openai`, which the documentation names."""
    assert INSTALLED.is_dir(), "run make .venv/.installed-openai-clients"
    provider = {
        "name": "openai",
        "provider_type": "openai",
        "base_url": f"{upstream.url}/v1",
        "api_key": KEY,
        "default_model": "gpt-4.1-mini",
    }
    ann.api.good("POST", "/providers", json=provider)
    return ann


def documented(person: Person, start: str) -> str:
    """The block of the page that contains `start`, for the test's server and key."""
    (block,) = [block for block in re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.M | re.S) if start in block]
    return block.replace("http://127.0.0.1:8000/v1", person.base_url).replace("luxx_…", person.key)


def environ(folder: Path, client: str, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(INSTALLED / client),
        "PYTHONUNBUFFERED": "1",
        **more,
    }


class Client:
    """A client's process, whose output is read as it comes."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.output:
            read = os.read(self.process.stdout.fileno(), 65536).decode()
            assert read, self.output
            self.output += read

    def finish(self) -> str:
        rest, _ = self.process.communicate(timeout=SECONDS)
        self.output += rest.decode()
        assert self.process.returncode == 0, self.output
        return self.output


def bodies(upstream: ScriptedProvider, word: str) -> list[dict[str, Any]]:
    """The requests of the model with this word."""
    return [json.loads(one.body) for one in upstream.requests if word in one.body.decode()]


def check_tool_and_image(upstream: ScriptedProvider, client: str, result: str) -> None:
    first, second = bodies(upstream, f"weather for {client}")
    assert first["tools"][0]["function"]["name"] == "get_weather"
    asked = next(message for message in second["messages"] if message["role"] == "user")
    assert {"type": "image_url", "image_url": {"url": IMAGE_URL}} in asked["content"]
    assert asked in first["messages"]
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "call_a", "content": result}


def test_llm(person: Person, upstream: ScriptedProvider, tmp_path: Path) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    (folder / "extra-openai-models.yaml").write_text(documented(person, "api_key_name: luxx"), "utf-8")
    (tmp_path / "image.png").write_bytes(png())
    env = environ(tmp_path, "llm", LLM_USER_PATH=str(folder))
    llm = [sys.executable, "-m", "llm"]
    with Client([*llm, "keys", "set", "luxx", "--value", person.key], tmp_path, env) as setting:
        setting.finish()
    function = "def get_weather(city: str) -> str:\n    return f'{city}: rain'"
    asking = ["-m", "luxx", "-a", "image.png", "--functions", function, "How is the weather for llm?"]
    with Client([*llm, *asking], tmp_path, env) as client:
        client.read_until("It rains ")
        assert "in Oslo" not in client.output
        upstream.release("llm")
        assert client.finish().strip().endswith("It rains in Oslo.")
    check_tool_and_image(upstream, "llm", "Oslo: rain")


def test_librechat(person: Person, upstream: ScriptedProvider, tmp_path: Path) -> None:
    settings = documented(person, "custom:")
    given = {
        "baseURL": re.search(r"baseURL: (\S+)", settings)[1],
        "model": re.search(r"default: \[(\S+)\]", settings)[1],
        "apiKey": person.key,
        "text": "How is the weather for librechat?",
        "image": IMAGE_URL,
        "tool": WEATHER[0],
    }
    client = Client(
        ["node", str(INSTALLED / "librechat.cjs"), json.dumps(given)], tmp_path, environ(tmp_path, "")
    )
    client.read_until("It rains ")
    assert "in Oslo" not in client.output
    upstream.release("librechat")
    answer = json.loads(client.finish().splitlines()[-1])
    assert answer["calls"] == [{"name": "get_weather", "args": {"city": "Oslo"}}]
    assert answer["content"] == "It rains in Oslo."
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (30, 5)
    check_tool_and_image(upstream, "librechat", "rain")


def test_aider_edits_a_file(person: Person, upstream: ScriptedProvider, tmp_path: Path) -> None:
    (tmp_path / ".aider.conf.yml").write_text(documented(person, "openai-api-base"), "utf-8")
    (tmp_path / ".aider.model.metadata.json").write_text(documented(person, "supports_vision"), "utf-8")
    (tmp_path / "image.png").write_bytes(png())
    options = ["--yes-always", "--no-git", "--no-pretty", "--no-check-update", "--analytics-disable"]
    options += ["--map-tokens", "0", "--edit-format", "whole", "--message", "Write a program that greets."]
    command = [sys.executable, "-m", "aider", *options, "greeting.py", "image.png"]
    with Client(command, tmp_path, environ(tmp_path, "aider")) as client:
        client.read_until("A program follows.")
        assert "hello from the model" not in client.output
        upstream.release("aider")
        client.finish()
    assert (tmp_path / "greeting.py").read_text("utf-8") == "print('hello from the model')\n"
    sent = json.dumps(bodies(upstream, "greets")[0]["messages"])
    assert base64.b64encode(png()).decode() in sent
