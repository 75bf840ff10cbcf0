"""Every recorded stream through a running server: the stored and shown answer is that of the
vendors' SDKs.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import recorded
from api.server_process import ADMIN_PASSWORD, ServerProcess
from optional_fields import expected_sources
from recorded_upstream import END, RecordedUpstream
from scenarios.client import USERNAME, AsyncApiClient
from wire_reading import (
    as_sdk_arguments,
    as_sdk_speech,
    joined_calls,
    read_in_pieces,
    values_at_paths,
    without_blanks,
)

from luxx.providers.registry import adapter_for
from luxx.runs.turn.shown_parts import NOT_SHOWN
from luxx.runs.turn.turn_log import NOTICES

pytestmark = pytest.mark.heavy

ENTRIES = [entry for entry in recorded.all_entries() if entry["api"] in recorded.BUILT]
PROVIDER_TYPES = {
    "openai": "openai_compatible",
    "openai-responses": "openai_responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
VERSIONS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": "", "gemini": "/v1beta"}
SECONDS = 60.0

Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all recordings; it does not retry, so that the first error is the result."""
    with ServerProcess(tmp_path_factory.mktemp("served"), LUXX_PROVIDERS__RETRIES="0") as started_server:
        yield started_server


@pytest.fixture(scope="module")
def token(server: ServerProcess) -> str:
    answer = httpx.post(
        f"{server.url}/auth/login", json={"username": USERNAME, "password": ADMIN_PASSWORD}, trust_env=False
    )
    return answer.json()["data"]["access_token"]


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordedUpstream]:
    streams = {_place(entry): recorded.stream_of(entry) for entry in ENTRIES}
    with RecordedUpstream(streams) as upstream:
        yield upstream


@pytest.mark.parametrize("entry", ENTRIES, ids=recorded.name_of)
async def test_stored_message_is_what_the_sdk_reads(
    server: ServerProcess, token: str, upstream: RecordedUpstream, entry: Json
) -> None:
    message, run = await _chat(server.url, token, upstream, entry)

    if recorded.begins_within_another(entry):
        assert (run["status"], message["finish"]) == ("failed", "error")
        assert not [step for step in message["steps"] if step["type"] == "tool_result"]
        return
    steps = _of_the_first_completion(message["steps"], len(upstream.asked[_place(entry)]))
    said = {kind: _joined(steps, kind) for kind in ("text", "thinking")}
    if "shortened" in (entry.get("note") or "") and not _images(message):
        # Part of the recorded image is missing, so that it cannot be shown; a notice says so.
        assert _notice(message).startswith(NOT_SHOWN.partition("{")[0])
        return
    if entry["api"] == "openai-responses" and entry["expected_reasoning"]:
        assert without_blanks(said["thinking"]) == without_blanks(entry["expected_reasoning"])
        said["thinking"] = entry["expected_reasoning"]
    refusal, notice = _in_place_of_text(entry)
    assert as_sdk_speech(said["text"], said["thinking"], entry) == (
        entry["expected_text"] or refusal,
        entry["expected_reasoning"],
    )
    assert _notice(message) == ("" if said["text"] or entry.get("expected_images") else notice)
    assert [
        (step["name"], values_at_paths(as_sdk_arguments(step["arguments"], entry)))
        for step in steps
        if _is_call(step)
    ] == _expected_calls(entry)
    _assert_citations_and_images(message, entry)
    if entry["api"] == "openai-responses":
        hosted = [step["id_ref"] for step in steps if step.get("is_hosted")]
        assert hosted == [call["id"] for call in entry["expected_server_tool_calls"]]
    if entry["expected_error"] is None:
        assert (run["status"], message["status"]) == ("completed", "complete")
        assert message["finish"] is not None
        assert message["text"] or _notice(message) or entry.get("expected_images")
    else:
        assert run["status"] == "failed"
        assert recorded.error_sentence(entry) in run["error"]


def _assert_citations_and_images(message: Json, entry: Json) -> None:
    if not entry["has_optional"]:
        return
    urls = [source.url for source in expected_sources(entry) if source.url]
    assert [citation["url"] for citation in message["citations"]] == list(dict.fromkeys(urls))
    assert [(image["media_type"], image["sha256"]) for image in _images(message)] == [
        (image["mime"], image["sha256"]) for image in entry.get("expected_images", [])
    ]


async def _chat(url: str, token: str, upstream: RecordedUpstream, entry: Json) -> tuple[Json, Json]:
    async with asyncio.timeout(SECONDS), AsyncApiClient(url, token) as ann:
        provider = {
            "name": recorded.name_of(entry)[-100:],
            "provider_type": PROVIDER_TYPES[entry["api"]],
            "base_url": f"{upstream.url(_place(entry))}{VERSIONS[entry['api']]}",
            "api_key": "a-key-of-no-use",
            "default_model": "recorded",
        }
        provider_id = (await ann.post("/providers", provider))["id"]
        conversation = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end(SECONDS)
        return await ann.answer_shown_by(conversation, screen), await ann.run(screen.run_id)


def _images(message: Json) -> list[Json]:
    return [image for step in message["steps"] for image in step.get("files", [])]


def _expected_calls(entry: Json) -> list[tuple[str, Json]]:
    expected_calls = entry["expected_tool_calls"]
    if entry["api"] == "gemini":
        return [(call["name"], call["values"]) for call in joined_calls(expected_calls)]
    # A call without arguments has an empty object.
    return [
        (call["name"], values_at_paths(as_sdk_arguments(call["arguments"] or "{}", entry)))
        for call in expected_calls
    ]


def _notice(message: Json) -> str:
    return "".join(step.get("notice", "") for step in message["steps"])


def _in_place_of_text(entry: Json) -> tuple[str, str]:
    """What Luxx shows where the SDK returns no text: the text of a refusal, else why there is none."""
    parser = adapter_for(PROVIDER_TYPES[entry["api"]]).parser
    reading = read_in_pieces(parser, recorded.stream_of(entry), 4096)
    if reading.finish is None or reading.calls:
        return "", ""
    refusal = str(reading.replay.get("refusal") or "")
    given = reading.finish.notice or NOTICES.get(reading.finish.reason, "")
    return refusal, "" if refusal else given


def _place(entry: Json) -> str:
    return recorded.name_of(entry).replace("/", "-")


def _of_the_first_completion(steps: list[Json], completions: int) -> list[Json]:
    """The steps before the first result; without calls, those before the text of the next completion."""
    if completions == 1:
        return steps
    assert completions == 2
    assert (steps[-1]["type"], steps[-1]["content"]) == ("text", END)
    results = [at for at, step in enumerate(steps) if step["type"] == "tool_result"]
    return steps[: results[0] if results else -1]


def _joined(steps: list[Json], kind: str) -> str:
    return "".join(step["content"] for step in steps if step["type"] == kind)


def _is_call(step: Json) -> bool:
    return step["type"] == "tool_call" and not step.get("is_hosted")
