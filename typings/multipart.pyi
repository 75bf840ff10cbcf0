"""What is used of the package multipart. The SDK for MCP brings python-multipart, which lays a package of the
same name beside it: when run, that one gives way to it, but readers of types look no further."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

class MultipartError(ValueError): ...

class MultipartSegment:
    name: str | None
    filename: str | None
    content_type: str | None
    charset: str | None
    size: int

class PushMultipartParser:
    def __init__(
        self,
        boundary: str | bytes,
        content_length: int = -1,
        max_header_size: int = ...,
        max_header_count: int = ...,
        max_segment_size: float = ...,
        max_segment_count: float = ...,
        header_charset: str = "utf8",
        strict: bool = False,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def parse(self, chunk: bytes | bytearray) -> Iterator[MultipartSegment | bytes | None]: ...

def parse_options_header(header: str) -> Any: ...
