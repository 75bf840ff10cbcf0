"""The shipped fake provider: it answers by rule in three dialects, injects faults, and fails when misused."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from luxx.errors import InvalidInput
from luxx.providers.scripted import (
    Call,
    Counts,
    Faults,
    Gate,
    Rule,
    Script,
    ScriptBroken,
    ScriptedProvider,
    Text,
    Thinking,
    When,
    load_script,
)

REPLY = [
    Thinking(text="hm"),
    Text(text="Hello there"),
    Call(name="add", arguments={"x": 1}, id="c1"),
    Counts(prompt=4, completion=3),
]


def openai_body(user: str = "hi", *, stream: bool = True, system: str = "", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    return {
        "model": "m",
        "stream": stream,
        "messages": [*messages, {"role": "user", "content": user}],
        **fields,
    }


def post(server: ScriptedProvider, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=10, trust_env=False)


def text_of(response: httpx.Response) -> str:
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def test_rules_match_by_system_user_tool_result_and_turn() -> None:
    rules = [
        Rule(when=When(system="planner"), reply=[Text(text="plan")]),
        Rule(when=When(has_tool_result=True), reply=[Text(text="seen")]),
        Rule(when=When(user="^again$", call=2), reply=[Text(text="second")]),
        Rule(when=When(user="^again$", call=1), reply=[Text(text="first")]),
    ]
    with ScriptedProvider(Script(rules=rules)) as server:
        path = "/v1/chat/completions"
        assert text_of(post(server, path, openai_body(system="You are the planner"))) == "plan"
        with_result = openai_body()
        with_result["messages"] += [{"role": "tool", "tool_call_id": "a", "content": "2"}]
        assert text_of(post(server, path, with_result)) == "seen"
        assert text_of(post(server, path, openai_body("again"))) == "first"
        assert text_of(post(server, path, openai_body("again"))) == "second"


def test_unscripted_call_is_an_error_on_the_wire_and_in_the_check() -> None:
    server = ScriptedProvider(Script(rules=[Rule(when=When(user="yes"), reply=[Text(text="ok")])]))

    def serve() -> None:
        with server:
            assert post(server, "/chat/completions", openai_body("yes")).status_code == 200
            response = post(server, "/chat/completions", openai_body("no"))
            assert response.status_code == 500
            assert "The script has no rule" in response.json()["error"]["message"]

    with pytest.raises(ScriptBroken, match=r"no rule for this call.*'no'"):
        serve()


def test_unused_rule_fails_the_check() -> None:
    server = ScriptedProvider(Script(rules=[Rule(name="greeting", reply=[Text(text="hi")])]))

    with pytest.raises(ScriptBroken, match="unused rule: greeting"):
        server.check()


def test_rule_used_up_answers_no_more() -> None:
    server = ScriptedProvider(Script(rules=[Rule(times=1, reply=[Text(text="hi")])]))

    def serve() -> None:
        with server:
            assert post(server, "/chat/completions", openai_body()).status_code == 200
            assert post(server, "/chat/completions", openai_body()).status_code == 500

    with pytest.raises(ScriptBroken, match="no rule for this call"):
        serve()


def test_requests_are_kept_with_headers_and_body() -> None:
    with ScriptedProvider(Script(rules=[Rule(name="r", reply=[Text(text="hi")])])) as server:
        post(server, "/v1/chat/completions", openai_body("hello"))
        received = server.requests[0]

    assert received.path == "/v1/chat/completions"
    assert received.headers["content-type"] == "application/json"
    assert received.json["messages"][0]["content"] == "hello"
    assert received.rule == "r"
    assert received.closed_at is not None


def test_openai_answer_without_stream_is_one_body() -> None:
    with ScriptedProvider(Script(rules=[Rule(reply=REPLY)])) as server:
        answer = post(server, "/chat/completions", openai_body(stream=False)).json()

    message = answer["choices"][0]["message"]
    assert message["content"] == "Hello there"
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"x":1}'}
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["total_tokens"] == 7


def test_anthropic_stream_has_its_blocks_in_order() -> None:
    body = {"model": "m", "stream": True, "system": "s", "messages": [{"role": "user", "content": "hi"}]}
    with ScriptedProvider(Script(rules=[Rule(when=When(user="hi", system="s"), reply=REPLY)])) as server:
        response = post(server, "/v1/messages", body)
        whole = post(server, "/v1/messages", {**body, "stream": False}).json()

    events = events_of(response)
    names = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    assert [block["type"] for block in starts] == ["thinking", "text", "tool_use"]
    assert stops == [0, 1, 2]
    assert "".join(delta.get("text", "") for delta in deltas) == "Hello there"
    assert "".join(delta.get("partial_json", "") for delta in deltas) == '{"x":1}'
    assert any(delta["type"] == "signature_delta" for delta in deltas)
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"] == {"input_tokens": 4, "output_tokens": 3}
    assert [part["type"] for part in whole["content"]] == ["thinking", "text", "tool_use"]


@pytest.mark.parametrize("query", ["?alt=sse", ""])
def test_gemini_stream_is_events_or_an_array(query: str) -> None:
    body = {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "s"}]},
    }
    rule = Rule(when=When(user="hi", system="s", model="gemini-x"), reply=REPLY)
    with ScriptedProvider(Script(rules=[rule])) as server:
        response = post(server, f"/v1beta/models/gemini-x:streamGenerateContent{query}", body)
        whole = post(server, "/v1beta/models/gemini-x:generateContent", body).json()

    chunks = events_of(response) if query else response.json()
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert (
        "".join(part["text"] for part in parts if "text" in part and not part.get("thought")) == "Hello there"
    )
    assert [part["functionCall"] for part in parts if "functionCall" in part] == [
        {"name": "add", "args": {"x": 1}, "id": "c1"}
    ]
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"
    assert chunks[-1]["usageMetadata"]["totalTokenCount"] == 7
    assert whole["candidates"][0]["content"]["parts"][1] == {"text": "Hello there"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [], "stream": True}),
        ("/v1beta/models/m:generateContent", {"contents": []}),
        ("/chat/completions", {"messages": []}),
    ],
)
def test_status_is_answered_in_the_dialects_form(path: str, body: dict[str, Any]) -> None:
    rule = Rule(status=429, headers={"retry-after": "3"}, message="slow down")
    with ScriptedProvider(Script(rules=[rule])) as server:
        response = post(server, path, body)

    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["message"] == "slow down"


def test_crlf_and_split_do_not_change_the_text() -> None:
    with ScriptedProvider(Script(rules=[Rule(reply=REPLY, crlf=True, faults=Faults(split=3))])) as server:
        response = post(server, "/chat/completions", openai_body())

    assert b"\r\n\r\n" in response.content
    assert text_of(response) == "Hello there"


async def test_gate_holds_the_answer_until_released() -> None:
    rule = Rule(reply=[Text(text="before"), Gate(name="go"), Text(text=" after")])
    order: list[str] = []
    async with (
        ScriptedProvider(Script(rules=[rule])) as server,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        request = client.stream("POST", f"{server.url}/chat/completions", json=openai_body())
        async with request as response:
            async for line in response.aiter_lines():
                if "before" in line:
                    await server.reached("go")
                    order.append("waiting")
                    server.release("go")
                if "after" in line:
                    order.append("after")
    assert order == ["waiting", "after"]


def test_script_file_is_read_and_served_until_a_signal(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(
        "rules:\n"
        "  - when: {user: hi}\n"
        "    reply:\n"
        "      - {type: text, text: from a file}\n"
        "      - {type: usage, prompt: 1, completion: 2}\n"
    )
    command = [sys.executable, "-m", "luxx.providers.scripted", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        answer = httpx.post(f"{url}/v1/chat/completions", json=openai_body(), timeout=10, trust_env=False)
        process.send_signal(signal.SIGTERM)
        _, complaint = process.communicate(timeout=10)

    assert text_of(answer) == "from a file"
    assert (process.returncode, complaint) == (0, "")


def test_script_with_an_unknown_field_is_refused_with_its_path(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("rules:\n  - {reply: [], wehn: {}}\n")

    with pytest.raises(InvalidInput, match="wehn"):
        load_script(script)
