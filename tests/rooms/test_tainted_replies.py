"""A reply brings the beginning of what it answers, so it is tainted as that is."""

from luxx.domain.conversations.models import MessageRow
from luxx.features.rooms.messages import entry_of
from luxx.features.rooms.prompt import TranscriptEntry


def test_a_reply_of_the_owner_is_tainted_by_what_it_answers() -> None:
    row = MessageRow(id="b", role="user", content='{"text":"Yes."}', sender_name="ann", reply_to="a")
    for by in (None, "@bob", "web_fetch"):
        answered = TranscriptEntry(msg_id="a", seat_id=None, name="bob", text="Pay.", tainted_by=by)
        assert entry_of(row, "ann", answered).tainted_by == by
    assert entry_of(row, "ann").tainted_by is None
