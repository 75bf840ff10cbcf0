"""The Gemini adapter with the real client, against the scripted provider, which speaks this dialect."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from provider_calls import KEY, CallResult, calling

from luxx.errors import (
    OutOfCredit,
    Overloaded,
    ProviderRefused,
    RateLimited,
    StreamInterrupted,
)
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.check import check_provider
from luxx.providers.client import Completion
from luxx.providers.scripted import (
    Bytes,
    Call,
    Counts,
    Fail,
    Faults,
    Finish,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from luxx.wire.message import AssistantPrompt, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall
from luxx.wire.turn import FinishReason, ReplayDelta, Usage

HELLO = CompletionRequest(
    model="gemini-x",
    messages=[SystemPrompt(text="Be kind."), UserPrompt(text="hello")],
    thinking_enabled=True,
)


def gemini_at(url: str) -> Target:
    return Target(provider_id=1, provider_type="gemini", base_url=url, api_key=KEY)


async def ask(*rules: Rule, request: CompletionRequest = HELLO, **settings: Any) -> CallResult:
    async with ScriptedProvider(Script(rules=list(rules))) as server, calling(**settings) as caller:
        called = await caller.call(gemini_at(server.url), request)
        assert all(sent.headers["x-goog-api-key"] == KEY for sent in server.requests)
        assert all(KEY not in sent.path for sent in server.requests)
        return called


async def complete(*rules: Rule) -> Completion:
    async with ScriptedProvider(Script(rules=list(rules))) as server, calling() as caller:
        return await caller.client.complete(HELLO, gemini_at(server.url))


@pytest.mark.parametrize("split", [0, 1, 7])
@pytest.mark.parametrize("is_crlf", [False, True])
async def test_stream_gives_all_kinds_of_deltas(split: int, is_crlf: bool) -> None:
    rule = Rule(
        when=When(system="Be kind", user="hello", model="^gemini-x$"),
        reply=[
            Thinking(text="I add."),
            Text(text="The sum is 2."),
            Call(name="add", arguments={"x": 1}, id="c1"),
            Call(name="now"),
            Counts(prompt=9, completion=5),
        ],
        crlf=is_crlf,
        faults=Faults(split=split),
    )

    completion = await complete(rule)

    assert (completion.thinking, completion.text) == ("I add.", "The sum is 2.")
    assert [(call.name, call.arguments) for call in completion.tool_calls] == [
        ("add", '{"x":1}'),
        ("now", "{}"),
    ]
    assert completion.tool_calls[0].call_id == "c1"
    assert completion.usage == Usage(prompt_tokens=9, completion_tokens=5, total_tokens=14)
    assert completion.finish is FinishReason.TOOL_CALLS


async def test_length_finish_is_reported() -> None:
    rule = Rule(reply=[Text(text="cut"), Finish(reason="length")])

    assert (await complete(rule)).finish is FinishReason.LENGTH


async def test_signature_of_a_call_is_sent_back_with_its_result() -> None:
    rules = [
        Rule(when=When(has_tool_result=False), reply=[Text(text="Let me see."), Call(name="now", id="c1")]),
        Rule(when=When(has_tool_result=True), reply=[Text(text="Noon.")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as server, calling() as caller:
        first = await caller.call(gemini_at(server.url), HELLO)
        (replay,) = [delta.data for delta in first.deltas if isinstance(delta, ReplayDelta)]
        call = ToolCall(call_id="c1", name="now", arguments="{}")
        answer = AssistantPrompt(text=first.text, tool_calls=[call], replay=replay)
        tool_result = ToolPrompt(call_id="c1", name="now", content="12:00")
        second = CompletionRequest(model="gemini-x", messages=[*HELLO.messages, answer, tool_result])
        assert (await caller.call(gemini_at(server.url), second)).text == "Noon."
        parts_of_answer = server.requests[1].json["contents"][1]["parts"]
    # The signature is the base64 of "scripted", which the scripted provider sends with each call.
    assert parts_of_answer == [
        {"text": "Let me see."},
        {"functionCall": {"id": "c1", "name": "now", "args": {}}, "thoughtSignature": "c2NyaXB0ZWQ="},
    ]


async def test_error_in_the_stream_is_retried_only_before_the_first_text() -> None:
    after_text = await ask(Rule(reply=[Text(text="half"), Fail(message="overloaded")]), retries=2)
    before_text = await ask(
        Rule(reply=[Fail(message="overloaded")], times=1), Rule(reply=[Text(text="whole")]), retries=2
    )

    assert (after_text.text, type(after_text.error), after_text.retries) == ("half", Overloaded, [])
    assert (before_text.text, before_text.error, len(before_text.retries)) == ("whole", None, 1)


async def test_malformed_call_reported_by_the_server_is_retried() -> None:
    malformed_call = {
        "candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "print(now())"}],
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
    }
    rules = (
        Rule(reply=[Bytes(data=f"data: {json.dumps(malformed_call)}\r\n\r\n")], times=1),
        Rule(reply=[Text(text="at last")]),
    )

    called = await ask(*rules, retries=1)

    assert (called.text, called.error) == ("at last", None)
    assert "MALFORMED_FUNCTION_CALL" in called.retries[0].reason


async def test_array_instead_of_events_is_read() -> None:
    chunks = [
        {"candidates": [{"content": {"parts": [{"text": "from an "}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "array"}]}, "finishReason": "STOP"}]},
    ]
    headers = {"content-type": "application/json"}
    rule = Rule(reply=[Bytes(data=json.dumps(chunks, indent=2))], headers=headers, faults=Faults(split=7))

    called = await ask(rule)

    assert (called.text, called.error) == ("from an array", None)


async def test_an_array_is_complete_though_the_connection_stays_open() -> None:
    chunk = {"candidates": [{"content": {"parts": [{"text": "done"}]}, "finishReason": "STOP"}]}
    rule = Rule(reply=[Bytes(data=json.dumps([chunk]))], faults=Faults(keep_open=True))

    # The end of the array ends the answer, not the idle timeout, for which the test would wait too long.
    assert (await ask(rule, idle_timeout_seconds=60)).text == "done"


async def test_stream_cut_in_the_middle_fails_and_one_left_open_after_the_end_does_not() -> None:
    cut = await ask(Rule(reply=[Text(text="one two three", pieces=0)], faults=Faults(drop_at=200)))
    left_open = await ask(
        Rule(reply=[Text(text="whole")], faults=Faults(keep_open=True)), idle_timeout_seconds=0.3
    )

    assert isinstance(cut.error, StreamInterrupted)
    assert (left_open.text, left_open.error) == ("whole", None)


def rate_limit_body(*details: dict[str, Any]) -> str:
    message = "You exceeded your current quota, please check your plan and billing details."
    error = {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": list(details)}
    return json.dumps({"error": error})


RETRY_AFTER_7_5_SECONDS = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}
DAILY_QUOTA = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}


async def test_rate_limit_is_retried_after_the_time_in_its_body() -> None:
    rules = (
        Rule(status=429, body=rate_limit_body(RETRY_AFTER_7_5_SECONDS), times=1),
        Rule(reply=[Text(text="at last")]),
    )

    called = await ask(*rules, retries=1)

    assert called.text == "at last"
    # The time of the body, and a random addition against many clients that retry together.
    assert 7.5 <= called.waits[0] < 9


@pytest.mark.parametrize("body", [rate_limit_body(RETRY_AFTER_7_5_SECONDS, DAILY_QUOTA), rate_limit_body()])
async def test_daily_or_spending_limit_is_not_retried(body: str) -> None:
    called = await ask(Rule(status=429, body=body), retries=3)

    assert isinstance(called.error, RateLimited | OutOfCredit)
    assert called.retries == []


async def test_error_in_an_array_is_read_for_its_message() -> None:
    body = json.dumps([{"error": {"code": 400, "message": "Please use a valid role: user, model."}}])

    called = await ask(Rule(status=400, body=body))

    assert isinstance(called.error, ProviderRefused)
    assert "valid role" in called.error.message


async def test_key_quoted_by_google_is_not_in_the_error() -> None:
    key = "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw"

    called = await ask(Rule(status=400, message=f"consumer {key} is suspended"))

    assert called.error is not None
    assert key not in called.error.message


async def test_models_are_listed() -> None:
    async with ScriptedProvider(Script(rules=[], models=["a", "b"])) as server, calling() as caller:
        result = await caller.client.list_models(gemini_at(server.url))
    assert result == ["a", "b"]


@contextmanager
def paged_models(pages: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """A server that lists models in pages and repeats the last one; its address, and the paths requested."""
    requested_paths: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(pages[min(len(requested_paths), len(pages) - 1)]).encode()
            requested_paths.append(self.path)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requested_paths
        finally:
            server.shutdown()
            thread.join()


async def list_models_at(url: str) -> list[str]:
    async with calling() as caller:
        return await caller.client.list_models(gemini_at(url))


async def test_models_are_listed_page_by_page() -> None:
    pages = [
        {"models": [{"name": "models/a"}], "nextPageToken": "two"},
        {"models": [{"name": "models/b"}], "nextPageToken": "three"},
        {"models": [{"name": "models/c"}]},
    ]
    with paged_models(pages) as (url, requested_paths):
        assert (await list_models_at(url)) == ["a", "b", "c"]

    assert [path.partition("pageToken=")[2] for path in requested_paths] == ["", "two", "three"]


async def test_endless_list_of_models_is_cut() -> None:
    with paged_models([{"models": [{"name": "models/a"}], "nextPageToken": "again"}]) as (
        url,
        requested_paths,
    ):
        # 20 is MAX_MODEL_PAGES; each page has one model.
        assert len(await list_models_at(url)) == len(requested_paths) == 20


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("API key not valid. Please pass a valid API key.", "wrong_key"),
        ("API key expired. Please renew the API key.", "wrong_key"),
        ("Invalid value at 'contents'", "refused"),
    ],
)
async def test_wrong_key_is_recognized_despite_its_status_400(message: str, kind: str) -> None:
    rule = Rule(status=400, message=message)
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        result = await check_provider(caller.client, gemini_at(server.url), "gemini-x")
    assert result.kind == kind
