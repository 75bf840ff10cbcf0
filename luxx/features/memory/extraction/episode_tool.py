"""The tool `episode_retrieval` for models: earlier parts of conversations and rooms, by words or by time.

It reads episodes of the scopes of the place of its run, and nothing where memory is off.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, Row, select

from luxx.domain.accounts.models import User
from luxx.errors import InvalidInput, ToolFailed
from luxx.features.memory.extraction.answers import Said
from luxx.features.memory.extraction.episodes import SOURCE_ROOM, EpisodeSource, read_said
from luxx.features.memory.lexical import ranked_episodes
from luxx.features.memory.models import EpisodeRow
from luxx.features.memory.scopes import Scopes
from luxx.features.memory.tools import answer_for_model, used_scopes
from luxx.features.memory.views import in_utc
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.tools.core import ToolContext
from luxx.tools.factory import ToolFunction, tool

MAX_EPISODES = 20
MAX_TEXT = 1_000
"""Characters of one message that are shown."""

MAX_ANSWER = 30_000
"""Characters of all messages of an answer."""

_episodes, _users = table_of(EpisodeRow), table_of(User)


class EpisodeWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which episodes; `since` and `until` are the arguments `from` and `to`."""

    query: (
        Annotated[str, Meta(min_length=1, max_length=2_000, description="What was talked about, in words")]
        | None
    ) = None
    source: EpisodeSource | None = None
    since: (
        Annotated[datetime, Meta(tz=True, description="Only later ones, like 2026-03-01T00:00:00Z")] | None
    ) = msgspec.field(default=None, name="from")
    until: Annotated[datetime, Meta(tz=True, description="Only earlier ones")] | None = msgspec.field(
        default=None, name="to"
    )
    limit: Annotated[int, Meta(ge=1, le=MAX_EPISODES, description="How many at most")] = 5


def episode_tool(store: Store) -> ToolFunction:
    """The tool, which reads this database."""

    @tool(name="episode_retrieval", category="memory", parameters=_schema())
    async def episode_retrieval(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """Find earlier parts of conversations and rooms by words, by time or both, with what was said there;
        without a query the newest. Only parts that were read for facts are found."""
        try:
            wish = msgspec.convert(arguments, EpisodeWish)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"wrong arguments: {error}") from error

        def work(connection: Connection) -> dict[str, Any]:
            _, scopes = used_scopes(connection, context)
            return _found(connection, scopes, wish, context)

        return await answer_for_model(store.read_rows(work))

    return episode_retrieval


def _schema() -> dict[str, Any]:
    (_, parts) = msgspec.json.schema_components([EpisodeWish])
    schema = dict(parts["EpisodeWish"])
    for name in ("title", "description"):
        schema.pop(name, None)
    return schema


def _found(connection: Connection, scopes: Scopes, wish: EpisodeWish, context: ToolContext) -> dict[str, Any]:
    """The episodes with their messages."""
    shown: list[dict[str, Any]] = []
    left = MAX_ANSWER
    for row in _rows(connection, scopes, wish):
        messages: list[dict[str, Any]] = []
        for each in shown_messages(connection, row, context):
            text = each.text[: min(MAX_TEXT, left)]
            left -= len(text)
            messages.append({"author": each.author, "text": text, "sent_at": each.sent_at})
        shown.append(
            {
                "id": row.uid, "name": row.name, "source": row.source, "happened_at": row.happened_at,
                "source_id": row.conversation_id or row.room_id, "messages": messages,
            }
        )  # fmt: skip
        if left <= 0:
            break
    return {"episodes": shown}


def shown_messages(connection: Connection, row: Row[Any], context: ToolContext) -> list[Said]:
    """What was said in an episode, with which the call is marked if it is not trusted. What was said in a
    room is not: others may have said it."""
    said = read_said(connection, row.id, row.username or "a person")
    context.metadata.is_untrusted |= any(row.source == SOURCE_ROOM or not each.trusted for each in said)
    return said


_with_person = select(*_episodes.c, _users.c.username).outerjoin(_users, _users.c.id == _episodes.c.user_id)


def episodes_of(connection: Connection, scopes: Scopes, episode_ids: Sequence[str]) -> list[Row[Any]]:
    """Those of the episodes that are in these scopes, oldest first."""
    is_one = _episodes.c.uid.in_(list(episode_ids)), _episodes.c.scope_id.in_(scopes.ids)
    query = _with_person.where(*is_one).order_by(_episodes.c.happened_at, _episodes.c.id)
    return [*connection.execute(query).all()]


def _rows(connection: Connection, scopes: Scopes, wish: EpisodeWish) -> list[Row[Any]]:
    """The episodes, the best first, or the newest first without a query."""
    conditions: list[ColumnElement[bool]] = [_episodes.c.scope_id.in_(scopes.ids)]
    if wish.source is not None:
        conditions.append(_episodes.c.source == wish.source)
    if wish.since is not None:
        conditions.append(_episodes.c.happened_at >= in_utc(wish.since, "from"))
    if wish.until is not None:
        conditions.append(_episodes.c.happened_at <= in_utc(wish.until, "to"))
    if wish.since is not None and wish.until is not None and wish.since > wish.until:
        raise InvalidInput("from must be earlier than to")
    query = _with_person
    if wish.query is None:
        query = query.where(*conditions).order_by(_episodes.c.happened_at.desc(), _episodes.c.id.desc())
        return [*connection.execute(query.limit(wish.limit)).all()]
    best = ranked_episodes(connection, scopes.ids, wish.query)
    rows = {row.id: row for row in connection.execute(query.where(*conditions, _episodes.c.id.in_(best)))}
    return [rows[key] for key in best if key in rows][: wish.limit]
