"""The sources that a provider names and the images that a model generates, in the form of each dialect."""

import json
from base64 import b64encode
from typing import Any

import pytest
from wire_reading import Reading, read_in_pieces

from luxx.providers.adapter import Adapter
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.citations import MAX_SOURCES
from luxx.providers.gemini.adapter import GEMINI
from luxx.providers.openai_chat.adapter import OPENAI

Json = dict[str, Any]

URL = "https://www.a.example/bread"
ENCODED = b64encode(b"an image \xff\xfe").decode()
SIZES = pytest.mark.parametrize("size", [1, 7, 4096])


def read(adapter: Adapter, *events: Json, size: int = 4096) -> Reading:
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    reading = read_in_pieces(adapter.parser, stream, size)
    assert reading.error is None
    return reading


def openai(delta: Json, **beside: Any) -> list[Json]:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **beside}
    return [{"choices": [{"index": 0, "delta": {"content": "Hi", **delta}}], **beside}, end]


def anthropic(*blocks: Json, citations: tuple[Json, ...] = (), reason: str = "end_turn") -> list[Json]:
    events: list[Json] = [{"type": "message_start", "message": {"model": "m", "content": []}}]
    for index, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        for citation in citations if block["type"] == "text" else ():
            delta = {"type": "citations_delta", "citation": citation}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]


def gemini(*parts: Json, **beside: Any) -> list[Json]:
    return [{"candidates": [{"content": {"parts": [*parts]}, "finishReason": "STOP", **beside}]}]


TEXT = {"type": "text", "text": "Hi"}
SEARCHED = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": URL, "title": "Bread", "encrypted_content": "x"}],
}
PAGE = {"url": URL, "title": "Bread"}
CITED = {**PAGE, "type": "web_search_result_location", "cited_text": "Bread \n rises."}
SOURCES: dict[str, tuple[Adapter, list[Json], list[tuple[str, str, str]]]] = {
    "addresses": (OPENAI, openai({}, citations=[URL, URL]), [(URL, "", "")]),
    "objects": (OPENAI, openai({}, citations=[PAGE]), [(URL, "Bread", "")]),
    "search results of cited pages": (
        OPENAI,
        openai({}, citations=[URL], search_results=[PAGE, {"url": "https://b.example/", "title": "No"}]),
        [(URL, "", ""), (URL, "Bread", "")],
    ),
    "search results alone": (OPENAI, openai({}, search_results=[PAGE]), [(URL, "Bread", "")]),
    "annotations": (
        OPENAI,
        openai({"annotations": [{"type": "url_citation", "url_citation": {**PAGE, "content": "It rises."}}]}),
        [(URL, "Bread", "It rises.")],
    ),
    "flat annotations": (
        OPENAI,
        openai({"annotations": [{"type": "url_citation", **PAGE}, {"type": "file", "filename": "a.pdf"}]}),
        [(URL, "Bread", ""), ("", "a.pdf", "")],
    ),
    "no sources": (OPENAI, openai({}, citations="none", search_results=[1, None]), []),
    "Anthropic": (ANTHROPIC, anthropic(SEARCHED, TEXT, citations=(CITED,)), [(URL, "Bread", "Bread rises.")]),
    "Anthropic, a document": (
        ANTHROPIC,
        anthropic(TEXT, citations=({"type": "char_location", "document_title": "a.txt", "cited_text": "a"},)),
        [("", "a.txt", "a")],
    ),
    "Anthropic, a search without a citation": (ANTHROPIC, anthropic(SEARCHED, TEXT), [(URL, "Bread", "")]),
    "Anthropic, a turn that goes on": (ANTHROPIC, anthropic(SEARCHED, TEXT, reason="pause_turn"), []),
    "Gemini": (
        GEMINI,
        gemini(
            {"text": "Hi"},
            groundingMetadata={
                "groundingChunks": [
                    {"web": {"uri": URL, "title": "Bread"}},
                    {"retrievedContext": {"title": "a.pdf", "text": "a"}},
                ]
            },
        ),
        [(URL, "Bread", ""), ("", "a.pdf", "")],
    ),
    "Gemini, recited": (
        GEMINI,
        gemini({"text": "Hi"}, citationMetadata={"citationSources": [{"uri": URL, "license": "mit"}]}),
        [(URL, "", "")],
    ),
    "Vertex AI, recited": (
        GEMINI,
        gemini({"text": "Hi"}, citationMetadata={"citations": [{"uri": URL, "title": "Bread"}]}),
        [(URL, "Bread", "")],
    ),
}
"""The dialect, the events, and the sources: address, title and snippet."""


@SIZES
@pytest.mark.parametrize("case", SOURCES)
def test_sources_are_read_in_order(case: str, size: int) -> None:
    adapter, events, expected = SOURCES[case]

    reading = read(adapter, *events, size=size)

    assert [(source.url, source.title, source.snippet) for source in reading.sources] == expected
    assert reading.text == "Hi"


def test_the_number_of_sources_is_limited() -> None:
    urls = [f"https://a.example/{number}" for number in range(MAX_SOURCES + 5)]

    assert len(read(OPENAI, *openai({}, citations=urls)).sources) == MAX_SOURCES


DATA_URL = f"data:image/png;base64,{ENCODED}"
PART = {"type": "image_url", "image_url": {"url": DATA_URL}}
INLINE = {"inlineData": {"mimeType": "image/png", "data": ENCODED}}
IMAGES: dict[str, tuple[Adapter, list[Json], int]] = {
    "delta": (OPENAI, openai({"images": [PART]}), 1),
    "delta, twice": (
        OPENAI,
        [*openai({"images": [PART]})[:1], *openai({"content": "", "images": [PART]})],
        1,
    ),
    "content part": (OPENAI, openai({"content": [{"type": "text", "text": "Hi"}, PART]}), 1),
    "not base64": (
        OPENAI,
        openai({"images": [{"image_url": {"url": "data:image/png;base64,é"}}, {"image_url": 5}, {}]}),
        0,
    ),
    "no image": (OPENAI, openai({"images": [{"image_url": {"url": f"data:text/html;base64,{ENCODED}"}}]}), 0),
    "Gemini": (GEMINI, gemini({"text": "Hi"}, INLINE), 1),
    "Gemini, a draft": (GEMINI, gemini({"text": "Hi"}, {**INLINE, "thought": True}), 0),
}


@SIZES
@pytest.mark.parametrize("case", IMAGES)
def test_images_are_read_once(case: str, size: int) -> None:
    adapter, events, count = IMAGES[case]

    reading = read(adapter, *events, size=size)

    assert [(image.media_type, image.data) for image in reading.images] == (
        [("image/png", b"an image \xff\xfe")] * count
    )
    assert reading.text == "Hi"


def test_an_image_at_another_address_is_named_and_not_fetched() -> None:
    reading = read(OPENAI, *openai({"images": [{"type": "image_url", "image_url": {"url": URL}}]}))

    assert [(source.url, source.title) for source in reading.sources] == [(URL, "Generated image")]
