"""Routes that take or give files, as the OpenAPI document tells of them. For `schema.py`."""

from typing import Any

from luxx.transfer.document import ExportDocument

Route = tuple[str, str]

DOWNLOADS: dict[Route, tuple[Any, str]] = {
    ("GET", "/conversations/{conversation_id}/export"): (ExportDocument, "text/markdown"),
}
"""Routes that answer with a bare document, and the other media type they also have."""

UPLOADS: dict[Route, dict[str, Any]] = {
    ("POST", "/conversations/import"): {
        "application/json": {"schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]}},
        "application/zip": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"file": {"type": "string", "format": "binary"}},
                "required": ["file"],
            }
        },
    },
}
"""Routes whose body is a file, streamed, and what it may be."""
