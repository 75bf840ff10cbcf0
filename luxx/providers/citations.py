"""What an answer has besides text: the sources that a provider names, within a limit, and the images that the
model generated; as deltas, each one once.
"""

import binascii
from base64 import b64decode
from hashlib import sha256
from typing import Any, cast

from luxx.providers.parsing import json_objects
from luxx.wire.source import Source, source_of
from luxx.wire.turn import CitationDelta, Delta, ImageDelta

MAX_SOURCES = 1_000
"""Sources of one completion; more are left out."""


class Citations:
    """Collects the sources of one completion."""

    def __init__(self) -> None:
        self._emitted: set[Source] = set()

    @property
    def has_any(self) -> bool:
        return bool(self._emitted)

    def add(self, out: list[Delta], url: object, title: object = "", snippet: object = "") -> None:
        """Emits a source, unless it was emitted before. One without a web address is known by its title."""
        source = source_of(_text(url), _text(title), _text(snippet))
        if not (source.url or source.title) or source in self._emitted:
            return
        if len(self._emitted) < MAX_SOURCES:
            self._emitted.add(source)
            out.append(CitationDelta(source=source))

    def add_listed(self, out: list[Delta], listed: object) -> None:
        """Emits the sources of a list: addresses, or objects with `url` and `title`."""
        for item in cast("list[object]", listed) if isinstance(listed, list) else []:
            if isinstance(item, str):
                self.add(out, item)
            else:
                for fields in json_objects([item]):
                    self.add(out, fields.get("url"), fields.get("title"), fields.get("snippet"))

    def add_search(self, out: list[Delta], cited: object, found: object) -> None:
        """Emits the cited sources, then what the search says of them; without cited ones, all it found."""
        self.add_listed(out, cited)
        listed = cast("list[object]", cited) if isinstance(cited, list) else []
        urls = {url for url in listed if isinstance(url, str)}
        results = json_objects(found)
        self.add_listed(out, [each for each in results if not urls or _text(each.get("url")) in urls])

    def add_annotations(self, out: list[Delta], annotations: list[dict[str, Any]]) -> None:
        """Emits the `annotations` of OpenAI's dialects; the fields may be in an object named as the type."""
        for annotation in annotations:
            inner = annotation.get(str(annotation.get("type")))
            fields = cast("dict[str, Any]", inner) if isinstance(inner, dict) else annotation
            title = fields.get("title") or fields.get("filename")
            self.add(out, fields.get("url"), title, fields.get("content"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_DATA_URL = "data:"
_BASE64 = ";base64"


class GeneratedImages:
    """Collects the images of one completion; servers may repeat one."""

    def __init__(self) -> None:
        self._emitted: set[bytes] = set()

    def add_base64(self, out: list[Delta], media_type: object, encoded: object) -> None:
        """Emits an image, unless it was emitted before or its base64 is not valid."""
        if not isinstance(media_type, str) or not isinstance(encoded, str):
            return
        try:
            data = b64decode(encoded + "=" * (-len(encoded) % 4), altchars=_url_safe(encoded), validate=True)
        except (binascii.Error, ValueError):
            return
        digest = sha256(data).digest()
        if data and media_type.startswith("image/") and digest not in self._emitted:
            self._emitted.add(digest)
            out.append(ImageDelta(media_type=media_type, data=data))

    def add_parts(self, out: list[Delta], parts: list[dict[str, Any]], citations: Citations) -> None:
        """Emits the images of `image_url` parts. One with a web address is a source: it is not fetched."""
        for part in parts:
            inner = part.get("image_url")
            url = cast("dict[str, Any]", inner).get("url") if isinstance(inner, dict) else inner
            if not isinstance(url, str):
                continue
            head, _, encoded = url.partition(",")
            if head.startswith(_DATA_URL):
                self.add_base64(out, head.removeprefix(_DATA_URL).removesuffix(_BASE64), encoded)
            else:
                citations.add(out, url, "Generated image")


def _url_safe(encoded: str) -> bytes | None:
    return b"-_" if "-" in encoded or "_" in encoded else None
