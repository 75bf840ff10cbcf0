"""Reads data URLs (RFC 2397) in all the spellings that browsers accept."""

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

_head = re.compile(r"\s*data:([^,]{0,300}),", re.IGNORECASE | re.ASCII)
_base64 = re.compile(r";[ ]*base64[ ]*$", re.IGNORECASE)
_BLANKS = b" \t\n\r\f"


class NoDataUrl(ValueError):
    """The text is no data URL."""


def read_data_url(url: str) -> bytes:
    """The data of the URL, in base64 (also without padding, with blanks, or for URLs) or percent-encoded.

    Raises NoDataUrl, or ValueError for data that is not readable.
    """
    head = _head.match(url)
    if head is None:
        raise NoDataUrl
    text = url[head.end() :]
    data = unquote_to_bytes(text) if "%" in text else text.encode()
    if _base64.search(head[1]) is None:
        return data
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        plain = data.translate(bytes.maketrans(b"-_", b"+/"), _BLANKS).rstrip(b"=")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
