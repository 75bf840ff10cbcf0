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
from process_environment import ROOT, scripted_models

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
        *weather("open-responses"),
        *weather("openai"),
        Rule(when=When(user="Say hello"), reply=[Text(text="Hello "), Text(text="there.")]),
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


ASK_TWICE = """
import json, os, sys
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key=os.environ["KEY"])
model, image, tool = "openai/gpt-4.1-mini", sys.argv[2], json.loads(sys.argv[3])
parts = [{"type": "input_text", "text": "How is the weather for openai?"},
         {"type": "input_image", "image_url": image, "detail": "auto"}]
items = [{"role": "user", "content": parts}]
for _ in range(2):
    with client.responses.stream(model=model, input=items, tools=[{"strict": None, **tool}]) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
        answer = stream.get_final_response()
    calls = [item for item in answer.output if item.type == "function_call"]
    items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in calls]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
print(answer.usage.total_tokens)
"""


def test_newest_openai_package(person: Person, upstream: ScriptedProvider, tmp_path: Path) -> None:
    script = re.search(r"cat > ask.py <<'END'\n(.*?)\nEND\n", PAGE, re.S)
    assert script is not None
    url = person.base_url.removesuffix("/v1")
    env = environ(tmp_path, "llm", LUXX_URL=url, KEY=person.key)
    with Client([sys.executable, "-c", script[1], "openai/gpt-4.1-mini"], tmp_path, env) as client:
        assert client.finish() == "Hello there."
    tool = {"type": "function", **WEATHER[0]["function"]}
    arguments = [person.base_url, IMAGE_URL, json.dumps(tool)]
    with Client([sys.executable, "-c", ASK_TWICE, *arguments], tmp_path, env) as client:
        client.read_until("It rains ")
        assert "in Oslo" not in client.output
        upstream.release("openai")
        assert client.finish() == "It rains in Oslo.35\n"
    check_tool_and_image(upstream, "openai", "rain")


def test_open_responses(person: Person, upstream: ScriptedProvider, tmp_path: Path) -> None:
    given = {
        "baseURL": person.base_url,
        "model": "openai/gpt-4.1-mini",
        "apiKey": person.key,
        "text": "How is the weather for open-responses?",
        "image": IMAGE_URL,
        "tool": WEATHER[0]["function"],
    }
    command = ["node", str(INSTALLED / "open-responses.mjs"), json.dumps(given)]
    with Client(command, tmp_path, environ(tmp_path, "")) as client:
        client.read_until("It rains ")
        assert "in Oslo" not in client.output
        upstream.release("open-responses")
        answer = json.loads(client.finish().splitlines()[-1])
    assert [call["input"] for call in answer["calls"]] == [{"city": "Oslo"}]
    assert (answer["content"], answer["finishReason"]["unified"]) == ("It rains in Oslo.", "stop")
    assert (answer["usage"]["inputTokens"]["total"], answer["usage"]["outputTokens"]["total"]) == (30, 5)
    check_tool_and_image(upstream, "open-responses", "rain")


def test_librechat(person: Person, upstream: ScriptedProvider, tmp_path: Path) -> None:
    settings = documented(person, "custom:")
    given: dict[str, Any] = {
        "baseURL": re.findall(r"baseURL: (\S+)", settings)[0],
        "model": re.findall(r"default: \[(\S+)\]", settings)[0],
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
