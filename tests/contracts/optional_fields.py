"""Compares the fields of a recorded stream that only some entries of a manifest have."""

from hashlib import sha256
from typing import Any

from wire_reading import Reading

from luxx.wire.source import Source, source_of

Json = dict[str, Any]


def assert_optional_fields(reading: Reading, entry: Json) -> None:
    """Citations, search results, images, the refusal and what must be sent back unchanged."""
    if not entry["has_optional"]:
        return
    assert _keys(reading.sources) == _keys(expected_sources(entry))
    given = [(source.url, source.title, source.snippet) for source in reading.sources]
    for source in [*expected_sources(entry), *_search_results(entry)]:
        # A later event may name the same page with what an earlier one left out.
        assert any(
            source.url == url and source.title in (title, "") and source.snippet in (snippet, "")
            for url, title, snippet in given
        ), f"{source} is missing in {given}"
    assert [(image.media_type, sha256(image.data).hexdigest()) for image in reading.images] == [
        (image["mime"], image["sha256"]) for image in entry.get("expected_images", [])
    ]
    if "expected_refusal" in entry:
        assert reading.replay.get("refusal") == entry["expected_refusal"]
    assert _signatures(entry) <= {text for kept in strings_in(reading.replay) for text in (kept, _hash(kept))}


def expected_sources(entry: Json) -> list[Source]:
    """The citations of the entry; those of a file have its name as title and no address."""
    return [
        source_of(
            citation.get("url") or citation.get("uri") or "",
            citation.get("title") or citation.get("filename") or citation.get("document_title") or "",
            citation.get("cited_text") or "",
        )
        for citation in [
            *entry.get("expected_citations", []),
            *entry.get("expected_citation_metadata", []),
        ]
    ]


def reported_usage(reading: Reading, entry: Json) -> dict[str, int] | None:
    """Prompt and completion as the provider counts them: some count the reasoning beside the completion."""
    if reading.usage is None or not _counts_reasoning_beside(entry):
        return reading.usage
    return {**reading.usage, "completion": reading.usage["completion"] - reading.spent.reasoning_tokens}


def assert_usage_details(reading: Reading, entry: Json) -> None:
    details = entry.get("expected_usage_details", {})
    spent = reading.spent
    counted = {
        "cache_read": spent.cached_tokens,
        "reasoning": spent.reasoning_tokens,
        "total": spent.total_tokens,
    }
    expected = {name: count or 0 for name, count in details.items()}
    if _counts_reasoning_beside(entry):
        # The total of one gateway leaves the reasoning out, while its cost has it.
        expected["total"] = spent.prompt_tokens + spent.completion_tokens
    assert {name: counted[name] for name in expected} == expected


def _counts_reasoning_beside(entry: Json) -> bool:
    """Reasoning beyond the completion cannot be a part of it."""
    reasoning = entry.get("expected_usage_details", {}).get("reasoning") or 0
    completion = (entry["expected_usage"] or {}).get("completion") or 0
    return "total-exceeds-sum" in entry["tags"] or reasoning > completion


def strings_in(value: Any) -> list[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in strings_in(item)] if isinstance(value, list) else []


def _keys(sources: list[Source]) -> list[str]:
    return list(dict.fromkeys(source.url or source.title for source in sources))


def _search_results(entry: Json) -> list[Source]:
    return [source_of(found["url"], found["title"], "") for found in entry.get("expected_search_results", [])]


def _signatures(entry: Json) -> set[str]:
    """Anthropic's are strings; of the others the manifest has the hash."""
    kept = [*entry.get("expected_signatures", []), *entry.get("expected_encrypted", [])]
    return {
        signature if isinstance(signature, str) else signature["sha256"] for signature in kept if signature
    }


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()
