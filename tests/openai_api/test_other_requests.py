"""Requests as clients of other servers send them: what Luxx does not have is left out; the run says so."""

import base64
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import IMAGE_URL, Person, png
from openai_api.test_chat import HELLO, MODEL, last_body

PNG = base64.b64encode(png()).decode()
SHELL: dict[str, Any] = {
    "type": "function",
    "name": "shell",
    "parameters": {"type": "object", "properties": {}},
}
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}


def answer(person: Person, path: str, **body: Any) -> dict[str, Any]:
    response = person.api.http.post(f"/v1/{path}", json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def chat(person: Person, **body: Any) -> dict[str, Any]:
    return answer(person, "chat/completions", **{"messages": HELLO, **body})


def warnings_of(person: Person, path: str, **body: Any) -> list[str]:
    """The warnings of the run of a request that a conversation keeps."""
    talk = person.api.good("POST", "/conversations", json={"title": "kept"})["id"]
    result = answer(person, path, **body, metadata={"conversation_id": talk, "tags": ["x"]})
    run_id = result["id"].partition("-" if path.startswith("chat") else "_")[2]
    log = person.api.good("GET", f"/runs/{run_id}/events", headers={"accept": "application/json"})
    return [event["message"] for event in log["events"] if event["type"] == "warning"]


def test_the_longest_name_of_a_provider_is_the_one_that_is_named(
    ann: Person, upstream: ScriptedProvider
) -> None:
    provider, _, model = MODEL.partition("/")
    stored = next(one for one in ann.api.good("GET", "/providers")["items"] if one["name"] == provider)
    body = {name: stored[name] for name in ("provider_type", "base_url", "default_model")}
    longer = ann.api.good(
        "POST", "/providers", json=body | {"name": f"{provider}/{model}", "api_key": "k" * 20}
    )
    chat(ann, model=f"{provider}/{model}/inner")
    assert last_body(upstream)["model"] == "inner"
    chat(ann)
    assert last_body(upstream)["model"] == model, "its whole name stands for no model of the longer one"
    ann.api.good("DELETE", f"/providers/{longer['id']}")
    chat(ann, model=f"{provider}/{model}/inner")
    assert last_body(upstream)["model"] == f"{model}/inner"


@pytest.mark.parametrize(
    "given",
    [
        {"top_k": 40},
        {"min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": False},
        {"num_ctx": 8192, "keep_alive": "5m"},
        {"provider": {"order": ["a"]}, "include_reasoning": True, "best_of": 1},
        {"session_id": "x"},
        {"guided_json": None, "echo": False},
    ],
    ids=lambda value: ",".join(value),
)
def test_unknown_members_are_left_out_with_a_warning(ann: Person, given: dict[str, Any]) -> None:
    warnings = warnings_of(ann, "chat/completions", messages=HELLO, **given)
    names = ", ".join(given)
    assert warnings == [f"Left out of the request, because this server has no such parameters: {names}."]
    assert warnings == warnings_of(ann, "responses", input="Say hello.", **given)


def test_room_is_warned_too(ann: Person) -> None:
    room = {"title": "Warned", "task": "Decide.", "max_rounds": 1, "agents": [{"name": "Hill"}]}
    room_id = ann.api.good("POST", "/chat-rooms", json=room)["id"]
    for kept in ({}, {"metadata": {"conversation_id": room_id}}):
        assert chat(ann, model=f"room/{room_id}", top_k=3, **kept)["choices"][0]["finish_reason"] == "stop"
    run_id = ann.api.good("GET", f"/chat-rooms/{room_id}")["run_id"]
    log = ann.api.good("GET", f"/runs/{run_id}/events", headers={"accept": "application/json"})
    (warning,) = [event["message"] for event in log["events"] if event["type"] == "warning"]
    assert "top_k" in warning


@pytest.mark.parametrize(
    ("given", "effort"),
    [
        ({"reasoning_effort": "max"}, "high"),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning": {"effort": "high"}}, "high"),
        ({"reasoning": {"enabled": False}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "medium"),
        ({"thinking": {"type": "disabled"}}, None),
        ({"enable_thinking": True}, "medium"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, None),
        ({"reasoning_effort": "none", "enable_thinking": True}, None),
    ],
    ids=str,
)
def test_thinking_is_switched_in_the_words_of_other_servers(
    ann: Person, upstream: ScriptedProvider, given: dict[str, Any], effort: str | None
) -> None:
    chat(ann, model="scripted/o4-mini", **given)
    assert last_body(upstream).get("reasoning_effort") == effort


def test_query_of_azure_is_ignored(ann: Person) -> None:
    body = {"model": MODEL, "messages": HELLO}
    assert ann.api.http.post("/v1/chat/completions?api-version=2025-01-01", json=body).status_code == 200
    assert ann.api.http.get("/v1/models?limit=3").status_code == 200


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;charset=utf-8;base64,{PNG}",
        f"DATA:image/PNG;BASE64,{PNG}",
        f"data:;base64,{PNG}",
        f"data:image/png;name=a.png;base64,{quote(PNG, safe='')}",
        f"data:image/png;base64,{PNG[:40]}\r\n{PNG[40:]}",
        f"data:image/png;base64,{PNG.rstrip('=')}",
        "data:image/png;base64," + base64.urlsafe_b64encode(png()).decode(),
        "data:image/png," + quote(png(), safe=""),
    ],
    ids=lambda url: url[:40],
)
def test_data_url_is_read_in_its_legal_spellings(ann: Person, upstream: ScriptedProvider, url: str) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    chat(ann, messages=[{"role": "user", "content": parts}])
    assert PNG in json.dumps(last_body(upstream))


def test_system_messages_alone_are_the_message_of_the_user(ann: Person, upstream: ScriptedProvider) -> None:
    chat(ann, messages=[{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Hi."}])
    assert last_body(upstream)["messages"] == [{"role": "user", "content": "Be brief.\nHi."}]
    item = {"role": "developer", "content": "Say hello."}
    answer(ann, "responses", input=[item], instructions="Be brief.")
    sent = [(one["role"], one["content"]) for one in last_body(upstream)["messages"]]
    assert sent == [("system", "Be brief."), ("user", "Say hello.")]


def test_images_in_results_of_tools_reach_the_model(ann: Person, upstream: ScriptedProvider) -> None:
    function = {"name": "shell", "arguments": "{}"}
    image = {"type": "image_url", "image_url": {"url": IMAGE_URL}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": [image]},
    ]
    chat(ann, model="scripted/gpt-4.1-mini", messages=messages)
    assert IMAGE_URL in json.dumps(last_body(upstream))
    output = {**OUTPUT, "output": [{"type": "input_image", "image_url": IMAGE_URL}]}
    answer(ann, "responses", model="scripted/gpt-4.1-mini", input=[USER, CALL, output], tools=[SHELL])
    sent = last_body(upstream)["messages"]
    assert IMAGE_URL in json.dumps(sent)
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]


CODEX: list[tuple[str, dict[str, Any]]] = [
    ("custom", {"tools": [SHELL, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}]}),
    ("web_search", {"tools": [SHELL, {"type": "web_search"}], "tool_choice": "auto"}),
    ("namespace", {"tools": [{"type": "namespace", "name": "f", "tools": [SHELL]}], "tool_choice": "auto"}),
    ("client_metadata", {"client_metadata": {"session": "x"}}),
    ("additional_tools", {"input": [{"type": "additional_tools", "role": "developer", "tools": []}, USER]}),
    ("web_search_call", {"input": [USER, {"type": "web_search_call", "id": "w", "status": "done"}, USER]}),
    ("", {"input": [USER, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}]}),
    ("mcp_call", {"input": [USER, {"type": "mcp_call", "name": "f", "arguments": "{}", "output": "x"}]}),
    ("shell_call", {"input": [USER, {"type": "shell_call", "call_id": "s", "action": {}}]}),
]


@pytest.mark.parametrize(("name", "given"), CODEX, ids=[name or "reasoning" for name, _ in CODEX])
def test_tools_and_items_of_other_types_are_left_out(ann: Person, name: str, given: dict[str, Any]) -> None:
    body = {"input": [USER], "store": False, **given}
    answer(ann, "responses", **body)
    body.pop("tools", None)  # A conversation uses the tools of the server.
    warnings = warnings_of(ann, "responses", **body) if "tools" not in given else [name]
    assert name in " ".join(warnings)
    assert bool(warnings) == bool(name)


def test_calls_of_other_types_are_calls_with_their_results(ann: Person, upstream: ScriptedProvider) -> None:
    items = [
        USER,
        CALL,
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
        USER,
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "no"}],
        },
        OUTPUT,
        {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
        {**OUTPUT, "output": {"exit_code": 0}},
        USER,
    ]
    answer(ann, "responses", input=items, tools=[SHELL])
    sent = last_body(upstream)["messages"]
    assert [one["role"] for one in sent] == [
        "user", "assistant", "tool", "tool", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    calls = [call["function"] for one in sent for call in one.get("tool_calls", [])]
    assert calls == [
        {"name": "shell", "arguments": "{}"},
        {"name": "apply_patch", "arguments": '{"input":"*** Begin"}'},
        {"name": "local_shell", "arguments": '{"command":["ls"]}'},
    ]
    assert [one["content"] for one in sent if one["role"] == "tool"] == ["ok", "no", '{"exit_code":0}']


def test_half_of_an_emoji_is_replaced(ann: Person, upstream: ScriptedProvider) -> None:
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "cut \ud83d, \\ud83d, \U0001f600"}]}
    )
    headers = {"content-type": "application/json"}
    response = ann.api.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 200, response.text
    assert last_body(upstream)["messages"][0]["content"] == "cut \ufffd, \\ud83d, \U0001f600"


def test_array_without_items_gets_them(ann: Person, upstream: ScriptedProvider) -> None:
    inner: dict[str, Any] = {"type": ["array", "null"]}
    properties = {"tags": {"type": "array"}, "type": {"type": "object", "properties": {"items": inner}}}
    function = {"name": "tag", "parameters": {"type": "object", "properties": properties}}
    chat(ann, tools=[{"type": "function", "function": function}])
    sent = last_body(upstream)["tools"][0]["function"]["parameters"]["properties"]
    assert sent["tags"] == {"type": "array", "items": {}}
    assert sent["type"] == {
        "type": "object",
        "properties": {"items": {"type": ["array", "null"], "items": {}}},
    }


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-a"}


def cors(response: httpx.Response) -> dict[str, str]:
    return {
        name.removeprefix("access-control-"): value
        for name, value in response.headers.items()
        if name.startswith("access-control-")
    }


def test_page_of_a_configured_origin_may_call(ann: Person) -> None:
    origin = {"origin": "http://app.example"}
    path = "/v1/chat/completions"
    asked = ann.api.http.options(path, headers={**origin, **PREFLIGHT, "authorization": ""})
    assert asked.is_success
    allowed = cors(asked)
    assert (allowed["allow-origin"], allowed["allow-headers"]) == ("http://app.example", "authorization,x-a")
    assert "POST" in allowed["allow-methods"]
    assert "allow-credentials" not in allowed
    answered = ann.api.http.post(path, headers=origin, json={"model": MODEL, "messages": HELLO})
    refused = ann.api.http.post(path, headers={**origin, "authorization": "Bearer x"}, json={})
    for response, status in ((answered, 200), (refused, 401)):
        assert (response.status_code, cors(response)["allow-origin"]) == (status, "http://app.example")
        assert response.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("origin", "path"),
    [
        ("http://other.example", "/v1/chat/completions"),
        ("http://app.example.org", "/v1/chat/completions"),
        ("null", "/v1/models"),
        ("http://app.example", "/conversations"),
        ("http://app.example", "/v1x"),
    ],
)
def test_no_other_origin_and_no_other_route_is_opened(ann: Person, origin: str, path: str) -> None:
    headers = {"origin": origin, **PREFLIGHT}
    assert not cors(ann.api.http.options(path, headers=headers))
    posted = ann.api.http.post(path, headers=headers, json={"model": MODEL, "messages": HELLO})
    assert (posted.status_code, cors(posted)) == (403, {})
