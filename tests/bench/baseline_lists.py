"""The baseline of lists: uvicorn, one Core query and msgspec, without sign-in or accounting.

Run as `python -m tests.bench.baseline_lists PORT DATABASE_URL`. `/conversations?user_id=` answers the newest
20, `/messages?conversation_id=&before=` the newest 100 before an id.
"""

import sys
from typing import Any
from urllib.parse import parse_qs

import msgspec
import uvicorn
from sqlalchemy import bindparam, select
from sqlalchemy.engine import make_url

from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.infra.store.engine import open_engine
from luxx.infra.store.tables import table_of

_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_newest = (
    select(_conversations)
    .where(_conversations.c.user_id == bindparam("user_id"))
    .order_by(_conversations.c.id.desc())
    .limit(20)
)
_columns = [column for column in _messages.c if column.name not in ("user_id", "run_id", "replay")]
_history = (
    select(*_columns)
    .where(_messages.c.conversation_id == bindparam("conversation_id"), _messages.c.id < bindparam("before"))
    .order_by(_messages.c.id.desc())
    .limit(100)
)
JSON = ("tags", "content", "usage")
"""Columns that contain JSON, which is passed on unchanged."""

_encode = msgspec.json.Encoder().encode


class BaselineLists:
    """An ASGI application of two routes."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(make_url(url)).execution_options(luxx_read=True)

    async def __call__(self, scope: dict[str, Any], _receive: Any, send: Any) -> None:
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        statement = _newest if scope["path"] == "/conversations" else _history
        with self._engine.connect() as connection:
            rows = [dict(row) for row in connection.execute(statement, query).mappings()]
        for row in rows:
            row.update({name: msgspec.Raw(row[name].encode()) for name in JSON if row.get(name) is not None})
        body = _encode({"success": True, "data": {"items": rows}, "message": ""})
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        BaselineLists(sys.argv[2]),
        port=int(sys.argv[1]),
        log_level="warning",
        access_log=False,
        lifespan="off",
    )
