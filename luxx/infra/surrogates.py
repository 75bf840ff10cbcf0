"""Lone surrogates in JSON, which decoders refuse: JavaScript writes them of a text cut within an emoji."""

import re

MAX_BYTES = 256 * 1024

_lone = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def without_lone_surrogates(document: bytes) -> bytes:
    """The JSON document with the replacement character in place of each escape that is half of a pair.

    A document of more than MAX_BYTES is left as it is: the event loop would wait.
    """
    return document if len(document) > MAX_BYTES else replace_lone_surrogates(document)


def replace_lone_surrogates(document: bytes) -> bytes:
    """The same for a document of any size; megabytes take some milliseconds each."""
    if b"\\u" not in document or b"\0" in document:
        return document
    # An escaped backslash begins no escape. NUL is no character of JSON, so it can stand for it.
    plain = document.replace(b"\\\\", b"\0\0")
    return _lone.sub(rb"\\ufffd", plain).replace(b"\0\0", b"\\\\")
