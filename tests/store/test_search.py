"""Search on both databases: what is found, in which order, by whom, and after every change."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_user import add_user
from sqlalchemy import delete, insert, select, text, update

from luxx.app.container import Services
from luxx.app.core_services import SUBJECT_READERS
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.conversations.models import ConversationRow, MessageRow, SearchTextRow
from luxx.domain.conversations.search import Search, SearchResults, SearchService, SearchSort
from luxx.domain.conversations.search_index import index_message, index_messages, index_title
from luxx.errors import NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.search_marks import QueryMatcher
from luxx.infra.store.search_words import MAX_WORDS, MOST_PIECES, SearchKind, fold, query_of
from luxx.wire.message import AssistantContent, Attachment, UserContent
from luxx.wire.tool import CommandPermission
from luxx.wire.turn import Step, StepStatus, StepType, step_id

assert Services  # Importing `Services` imports every table.


def caller(user_id: int) -> Caller:
    return Caller(
        user_id=user_id,
        tenant_id=1,
        username=f"user{user_id}",
        permission_level=CommandPermission.READ_ONLY,
        sign_in_id="",
    )


ANN, BEN = caller(1), caller(2)


def add_people(session: Any) -> None:
    add_user(session)
    ann = session.get(User, 1)
    columns = {column.name: getattr(ann, column.name) for column in User.__table__.columns}
    session.execute(insert(User).values(columns | {"id": 2, "username": "ben", "username_key": "ben"}))


@pytest.fixture
def search_store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    """A migrated database with two users."""
    engine = open_engine(resolve_url(ready_url, tmp_path))
    store = Store(engine)
    store.write_now(add_people)
    yield store
    store.close()


def conversation(store: Store, title: str = "Untold", *, who: Caller = ANN) -> str:
    id_, now = new_id(), utc_now()
    row = {"id": id_, "user_id": who.user_id, "title": title, "created_at": now, "updated_at": now}

    def work(session: Any) -> None:
        session.execute(insert(ConversationRow).values(row | {"tags": "[]"}))
        index_title(session.connection(), user_id=who.user_id, conversation_id=id_, title=title)

    store.write_now(work)
    return id_


def row_of(conversation_id: str, content: msgspec.Struct, who: Caller) -> dict[str, Any]:
    return {
        "id": new_id(), "user_id": who.user_id, "conversation_id": conversation_id, "created_at": utc_now(),
        "role": "user" if isinstance(content, UserContent) else "assistant",
        "content": msgspec.json.encode(content).decode(),
    }  # fmt: skip


def say(store: Store, conversation_id: str, said: str | msgspec.Struct, *, who: Caller = ANN) -> str:
    """Stores a message as the services do. Returns its id."""
    content = UserContent(text=said) if isinstance(said, str) else said
    row = row_of(conversation_id, content, who)

    def work(session: Any) -> None:
        session.execute(insert(MessageRow).values(row))
        index_message(session.connection(), row)

    store.write_now(work)
    return row["id"]


def find(
    store: Store, query: str, *, who: Caller = ANN, page: int = 1, size: int = 100, **more: Any
) -> SearchResults:
    async def work() -> SearchResults:
        async with asyncio.timeout(30):
            search = Search(query=query, **more)
            return await SearchService(store, SUBJECT_READERS).find(who, search, page=page, page_size=size)

    return asyncio.run(work())


def ids(store: Store, query: str, **more: Any) -> list[str | None]:
    return [hit.message_id for hit in find(store, query, **more).hits]


def marked_words(store: Store, query: str) -> list[str]:
    (hit,) = find(store, query).hits
    return [hit.snippet.text[mark.start : mark.end] for mark in hit.snippet.marks]


def index_of(store: Store) -> list[Any]:
    return store.read_now(lambda session: list(session.execute(select(SearchTextRow.__table__)).all()))


def is_sound(store: Store) -> bool:
    """Lets SQLite compare the index with the texts; raises if they differ."""
    if store.is_sqlite:
        store.write_now(
            lambda session: session.execute(
                text("INSERT INTO search_index (search_index, rank) VALUES ('integrity-check', 1)")
            )
        )
    return True


# --- what is found ----------------------------------------------------------------------------------


def test_texts_with_more_of_the_words_come_first_and_order_case_and_accents_do_not_matter(
    search_store: Store,
) -> None:
    chat = conversation(search_store)
    both = say(search_store, chat, "The quick BROWN fox went to the Café.")
    bear = say(search_store, chat, "A brown bear.")
    assert ids(search_store, "fox brown") == [both, bear]
    assert ids(search_store, "fox brown", sort=SearchSort.NEWEST) == [both]
    assert ids(search_store, "brown", sort=SearchSort.NEWEST) == [bear, both]
    assert ids(search_store, "cafe") == ids(search_store, "CAFÉ") == [both]
    assert ids(search_store, "cafe BROWN") == [both, bear]
    assert ids(search_store, "bro fo") == []


def test_a_phrase_matches_exactly_and_a_star_matches_a_prefix(search_store: Store) -> None:
    chat = conversation(search_store)
    first_message = say(search_store, chat, "machine learning is fun")
    other = say(search_store, chat, "learning by machine, from machinery")
    assert ids(search_store, '"machine learning"') == [first_message]
    assert set(ids(search_store, "machine learning")) == {other, first_message}
    assert ids(search_store, "machiner*") == [other]
    assert ids(search_store, '"machin"') == []
    assert ids(search_store, '"is fu"*') == [first_message]
    assert ids(search_store, '"from_machinery"') == [other]
    assert ids(search_store, "machiner* fun") == [other]


def test_other_forms_of_a_word_and_the_date_find_a_message_and_forms_are_marked(search_store: Store) -> None:
    chat = conversation(search_store)
    row = row_of(chat, UserContent(text="We were running home. Then he runs."), ANN)
    row["created_at"] = datetime(2026, 11, 27, tzinfo=UTC)

    def work(session: Any) -> None:
        session.execute(insert(MessageRow).values(row))
        index_message(session.connection(), row)

    search_store.write_now(work)
    assert ids(search_store, "run") == [row["id"]]
    assert marked_words(search_store, "run homes") == ["running", "home", "runs"]
    for query in ("November", "2026-11-27", "11月27日"):
        assert ids(search_store, query) == [row["id"]], query
    assert ids(search_store, '"November"') == ids(search_store, "December") == []


@pytest.mark.parametrize(
    ("said", "queries"),
    [
        (
            "今天我们讨论机器学习的基础。",
            ["机器学习", "机器", "学习", "学", "础", "讨论 基础", "器学习的", "今"],
        ),
        ("用GPT模型写作，第3章。", ["GPT模型", "模型写", "gpt", "第3章", "型写作", "3", "ＧＰＴ"]),
        ("東京タワーへ行きました", ["東京", "タワー", "東京タワー", "行き", "京タ"]),
        ("서울에서 만나요", ["서울", "서울에서", "만나요", "울에"]),
        ("สวัสดีครับ", ["สวัสดี", "ครับ"]),
        ("Привет, Ёлка!", ["привет", "елка", "ПРИ*"]),
        ("हिन्दी में लिखा", ["हिन्दी", "लिखा"]),
    ],
)
def test_every_part_of_a_text_without_spaces_is_found_and_marked(
    search_store: Store, said: str, queries: list[str]
) -> None:
    chat = conversation(search_store)
    first_message = say(search_store, chat, "前面的话。" + said)
    say(search_store, chat, "something else entirely 别的内容")
    for query in queries:
        assert ids(search_store, query) == [first_message], query
        assert marked_words(search_store, query), query
    assert "".join(marked_words(search_store, queries[0])).casefold() == queries[0].casefold()
    for absent in ("器机", "习机", "天的", "模学", "京東", "울서"):  # No pair is in the text.
        assert ids(search_store, absent) == [], absent


def test_a_message_is_found_only_by_its_text_and_its_file_names(search_store: Store) -> None:
    chat = conversation(search_store)
    file = Attachment(name="quarterly_report.pdf", extension="pdf", content="confidential numbers")
    asked = say(search_store, chat, UserContent(text="look at this", attachments=[file]))
    kinds = [
        (StepType.THINKING, "pondering", StepStatus.DONE),
        (StepType.TOOL_RESULT, "tooling", StepStatus.DONE),
        (StepType.TEXT, "abandoned", StepStatus.INTERRUPTED),
        (StepType.TEXT, "Revenue grew", StepStatus.CANCELLED),
    ]
    steps = [
        Step(id=step_id(index), index=index, type=kind, content=content, status=status)
        for index, (kind, content, status) in enumerate(kinds)
    ]
    answered = say(search_store, chat, AssistantContent(steps=steps))
    assert (
        ids(search_store, "quarterly")
        == ids(search_store, "quarterly_report.pdf")
        == ids(search_store, "look")
        == [asked]
    )
    assert ids(search_store, "revenue") == [answered]
    for hidden in ("confidential", "pondering", "tooling", "abandoned", "steps", "thinking", "user"):
        assert ids(search_store, hidden) == [], hidden


def test_kinds_are_mixed_by_relevance_or_by_time(search_store: Store) -> None:
    old = conversation(search_store, "Garden plans")
    first = say(search_store, old, "the garden needs much more water than we all had thought")
    new = conversation(search_store, "A garden party")
    second = say(search_store, new, "garden")
    results = find(search_store, "garden", sort=SearchSort.NEWEST)
    assert [(hit.rank, hit.kind, hit.conversation_id, hit.message_id) for hit in results.hits] == [
        (1, SearchKind.MESSAGE, new, second),
        (2, SearchKind.CONVERSATION, new, None),
        (3, SearchKind.MESSAGE, old, first),
        (4, SearchKind.CONVERSATION, old, None),
    ]
    assert [hit.conversation_title for hit in results.hits] == ["A garden party"] * 2 + ["Garden plans"] * 2
    assert [hit.role for hit in results.hits] == ["user", None, "user", None]
    assert ids(search_store, "garden")[-1] == first
    assert ids(search_store, "garden water")[0] == first
    assert ids(search_store, "garden", kind=SearchKind.MESSAGE) == [second, first]
    assert ids(search_store, "garden", kind=SearchKind.CONVERSATION) == [None, None]
    assert ids(search_store, "garden", conversation_id=old) == [None, first]
    assert ids(search_store, "garden", conversation_id=old, kind=SearchKind.MESSAGE) == [first]
    results = find(search_store, "garden")
    paged = [find(search_store, "garden", page=page, size=3) for page in (1, 2, 3)]
    assert [hit for each in paged for hit in each.hits] == results.hits
    assert [each.total for each in paged] == [4, 4, 4]


def test_more_than_a_thousand_hits_are_not_counted_and_the_answer_says_so(search_store: Store) -> None:
    chat = conversation(search_store)
    rows = [row_of(chat, UserContent(text="again"), ANN) for _ in range(1002)]

    def work(session: Any) -> None:
        session.execute(insert(MessageRow), rows)
        index_messages(session.connection(), rows)

    search_store.write_now(work)
    results = find(search_store, "again", page=10)
    assert (results.total, results.has_more, len(results.hits)) == (1000, True, 100)
    assert results.hits[0].message_id == rows[101]["id"]
    assert find(search_store, "again", page=11).hits == []


def test_a_snippet_shows_the_match_and_offsets_in_characters(search_store: Store) -> None:
    chat = conversation(search_store)
    say(search_store, chat, "🙂 e\u0301tude " * 300 + "the needle 🙂 in the haystack" + " straw" * 300)
    (hit,) = find(search_store, "needle haystack").hits
    assert len(hit.snippet.text) == 200
    assert marked_words(search_store, "needle haystack") == ["needle", "haystack"]
    assert marked_words(search_store, "étude")[:2] == ["étude", "étude"]


# --- ownership ---------------------------------------------------------------------------------------


def test_search_finds_only_the_users_own_messages(search_store: Store) -> None:
    anns, bens = conversation(search_store, "Treasure"), conversation(search_store, "Treasure map", who=BEN)
    mine = say(search_store, anns, "treasure under the oak")
    theirs = say(search_store, bens, "treasure under the elm", who=BEN)
    assert ids(search_store, "treasure", sort=SearchSort.NEWEST) == [mine, None]
    assert ids(search_store, "treasure", who=BEN, sort=SearchSort.NEWEST) == [theirs, None]
    assert [hit.conversation_id for hit in find(search_store, "treasure").hits] == [anns, anns]
    for forged in (f'"message={BEN.user_id}"', f"in={bens}", f"in={bens[:8]}*"):
        assert find(search_store, forged).hits == [], forged
    for foreign in (bens, new_id()):
        with pytest.raises(NotFound):
            find(search_store, "treasure", conversation_id=foreign)


# --- changes -----------------------------------------------------------------------------------------


def test_a_deleted_message_is_not_found_and_not_in_the_index(search_store: Store) -> None:
    chat, other = conversation(search_store, "Doomed words"), conversation(search_store)
    first = say(search_store, chat, "words to keep for a while")
    second = say(search_store, chat, "words to delete")
    remaining_message = say(search_store, other, "other words", who=ANN)
    search_store.write_now(lambda session: session.execute(delete(MessageRow).where(MessageRow.id == second)))
    assert ids(search_store, "words", sort=SearchSort.NEWEST) == [remaining_message, first, None]
    search_store.write_now(
        lambda session: session.execute(delete(ConversationRow).where(ConversationRow.id == chat))
    )
    assert ids(search_store, "words") == [remaining_message]
    search_store.write_now(lambda session: session.execute(delete(User).where(User.id == 1)))
    assert ids(search_store, "words") == []
    assert index_of(search_store) == []
    assert is_sound(search_store)


def test_a_changed_message_and_title_are_found_by_their_new_text(search_store: Store) -> None:
    chat = conversation(search_store, "First name")
    message_id = say(search_store, chat, "half an ans")
    later = row_of(chat, UserContent(text="half an answer, and its end"), ANN) | {"id": message_id}

    def change(session: Any) -> None:
        session.execute(
            update(MessageRow).where(MessageRow.id == message_id).values(content=later["content"])
        )
        index_message(session.connection(), later)
        session.execute(update(ConversationRow).values(title="Second name"))
        index_title(session.connection(), user_id=1, conversation_id=chat, title="Second name")

    search_store.write_now(change)
    assert ids(search_store, '"ans"') == []
    assert ids(search_store, "answer end") == [message_id]
    assert ids(search_store, "first") == []
    assert ids(search_store, "second") == [None]
    assert len(index_of(search_store)) == 2
    assert is_sound(search_store)


def test_a_failed_write_leaves_nothing_in_the_index(search_store: Store) -> None:
    chat = conversation(search_store)
    row = row_of(chat, UserContent(text="never said"), ANN)

    def fails(session: Any) -> None:
        session.execute(insert(MessageRow).values(row))
        index_message(session.connection(), row)
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        search_store.write_now(fails)
    assert ids(search_store, "never") == []
    assert is_sound(search_store)


# --- arbitrary queries and texts ---------------------------------------------------------------------

SIGNS = st.text(st.sampled_from(list("\"'*():&|!<->^{}+-=\\/%_,.; aA机器学習é\u0301ﬁß½\n\t0٣")), max_size=60)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_any_query_and_text_works_and_each_text_finds_itself(search_store: Store) -> None:
    chat = conversation(search_store)

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(said=st.one_of(SIGNS, ANYTHING), asked=st.one_of(SIGNS, ANYTHING))
    def ask(said: str, asked: str) -> None:
        message_id = say(search_store, chat, said)
        find(search_store, asked)
        results = find(search_store, f'"{said.replace(chr(34), " ")}"')
        assert not results.total or message_id in [hit.message_id for hit in results.hits]
        assert results.total or not any(character.isalnum() for character in said)

    ask()
    for asked in (
        '"',
        "*",
        "a" * 200,
        "机" * 200,
        "a b " * 50,
        "NEAR(a, b)",
        "words:a",
        "^a",
        "a AND",
        "-",
        "''",
    ):
        find(search_store, asked)


def test_the_beginning_of_a_very_long_message_is_found(search_store: Store) -> None:
    chat = conversation(search_store)
    long = say(
        search_store, chat, " ".join(f"word{number}" for number in range(MAX_WORDS * 2)) + " 机器" * 10_000
    )
    assert ids(search_store, "word1 word9999") == [long]
    assert ids(search_store, f"word{MAX_WORDS * 2 - 1}") == []
    unspaced = say(search_store, chat, "".join(chr(0x4E00 + number % 20_000) for number in range(200_000)))
    assert ids(search_store, "一丁") == [unspaced]
    wide = say(search_store, chat, " ".join(f"{chr(0x10330 + n % 20) * 70}{n}" for n in range(MAX_WORDS)))
    assert wide is not None
    assert is_sound(search_store)


class Counted(str):
    """A text that counts how often it is searched."""

    __slots__ = ("looks",)

    def find(self, *given: Any) -> int:
        self.looks = getattr(self, "looks", 0) + 1
        return super().find(*given)


def test_a_long_phrase_that_almost_matches_everywhere_is_searched_in_linear_time() -> None:
    phrase = '"' + "a " * 97 + 'b"'
    query = query_of(phrase)
    terms = query.required
    assert max(len(term.pieces) for term in terms) == MOST_PIECES
    assert [len(term.words) for term in query_of('"' + "\u554a" * 200 + '"').required] == [15, 7]
    text = Counted(fold("a " * 15 + "c " + "a " * 14 + "c "))
    text = Counted(str(text) * 1000)
    assert QueryMatcher(query).first(text, 140) is None
    assert text.looks <= 600 * len(terms)


def test_a_phrase_of_many_words_needs_all_of_them(search_store: Store) -> None:
    chat = conversation(search_store)
    words = [f"word{number}" for number in range(30)]
    message = say(search_store, chat, " ".join(words))
    say(search_store, chat, " ".join(words[:20]))
    assert ids(search_store, f'"{" ".join(words[:28])}"'[:199]) == [message]
    chinese = say(search_store, chat, "\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03" * 5)
    assert ids(search_store, "\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03" * 5) == [chinese]
