"""Where facts come from, as a filter: a kind of source, or one message, conversation, room, page, person."""

import msgspec
from sqlalchemy import ColumnElement, exists, select

from luxx.domain.conversations.models import MessageRow
from luxx.errors import InvalidInput
from luxx.features.memory.models import FactSourceRow
from luxx.features.memory.views import facts
from luxx.infra.store.tables import table_of
from luxx.wire.memory import SourceKind
from luxx.wire.model_settings import MAX_ID

IN_SOURCE = (
    "message, document, page, person, or one of them: message:ID, conversation:ID, room:ID, page:ADDRESS, "
    "person:ID"
)

_sources = table_of(FactSourceRow)
_messages = table_of(MessageRow)
_columns = {"message": _sources.c.message_id, "page": _sources.c.url, "person": _sources.c.user_id}
_subjects = {"conversation": _messages.c.conversation_id, "room": _messages.c.room_id}


class SourceFilter(msgspec.Struct, frozen=True):
    """`kind` alone, or with an `id`."""

    kind: str
    id: str = ""

    @classmethod
    def parse(cls, text: str) -> "SourceFilter":
        """Raises InvalidInput for what is no source."""
        kind, colon, id_ = text.partition(":")
        is_kind = not colon and kind in list(SourceKind)
        is_one = bool(id_) and (kind in _columns or kind in _subjects)
        if kind == "person" and id_ and not (id_.isascii() and id_.isdigit() and int(id_) <= MAX_ID):
            raise InvalidInput("the id of a person is a number: write person:NUMBER", field="source")
        if not is_kind and not is_one:
            raise InvalidInput(f"must be one of {IN_SOURCE}", field="source")
        return cls(kind, id_)

    def condition(self) -> ColumnElement[bool]:
        """The condition on facts with such a source."""
        found = exists().where(_sources.c.fact_id == facts.c.id)
        if not self.id:
            return found.where(_sources.c.kind == self.kind)
        if self.kind in _subjects:
            messages = select(_messages.c.id).where(_subjects[self.kind] == self.id)
            return found.where(_sources.c.message_id.in_(messages))
        value = int(self.id) if self.kind == "person" else self.id
        return found.where(_columns[self.kind] == value, _sources.c.kind == self.kind)
