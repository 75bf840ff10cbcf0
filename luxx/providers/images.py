"""The images that a model generated: as deltas, each one once."""

import binascii
from base64 import b64decode
from hashlib import sha256
from typing import Any, cast

from luxx.providers.citations import Citations
from luxx.wire.turn import Delta, ImageDelta

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
