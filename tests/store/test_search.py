"""Search, alike on both databases: what is found, in which order, by whom, and after every change."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prepared import make_ready
from rows import add_user
from sqlalchemy import delete, insert, select, text, update

from luxx.app.container import House
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.conversations.models import ConversationRow, MessageRow, SearchTextRow
from luxx.domain.conversations.search import Found, Search, SearchService
from luxx.domain.conversations.search_index import index_message, index_messages, index_title
from luxx.errors import NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import SCRIPTS, migrate
from luxx.infra.store.search_words import MOST_PIECES, WORDS, Places, SearchKind, fold, terms_of
from luxx.wire.message import AssistantContent, Attachment, UserContent
from luxx.wire.step import Step, StepStatus, StepType, step_id
from luxx.wire.tool import CommandPermission

assert House  # Importing the roof imports every table there is.


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
def house(database_url: str, tmp_path: Path) -> Iterator[Store]:
    """A migrated database with two people."""
    engine = open_engine(resolve_url(database_url, tmp_path))
    make_ready(engine)
    made = Store(engine)
    made.write_now(add_people)
    yield made
    made.close()


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
    """Stores a message as those do who store messages; its id."""
    content = UserContent(text=said) if isinstance(said, str) else said
    row = row_of(conversation_id, content, who)

    def work(session: Any) -> None:
        session.execute(insert(MessageRow).values(row))
        index_message(session.connection(), row)

    store.write_now(work)
    return row["id"]


def find(
    store: Store, query: str, *, who: Caller = ANN, page: int = 1, size: int = 100, **more: Any
) -> Found:
    async def work() -> Found:
        async with asyncio.timeout(30):
            search = Search(query=query, **more)
            return await SearchService(store).find(who, search, page=page, page_size=size)

    return asyncio.run(work())


def ids(store: Store, query: str, **more: Any) -> list[str | None]:
    return [hit.message_id for hit in find(store, query, **more).hits]


def marked(store: Store, query: str) -> list[str]:
    (hit,) = find(store, query).hits
    return [hit.snippet.text[mark.start : mark.end] for mark in hit.snippet.marks]


def index_of(store: Store) -> list[Any]:
    return store.read_now(lambda session: list(session.execute(select(SearchTextRow.__table__)).all()))


def is_sound(store: Store) -> bool:
    """SQLite's own comparison of the index with the texts it is of; it raises where they differ."""
    if store.is_sqlite:
        store.write_now(
            lambda session: session.execute(
                text("INSERT INTO search_index (search_index, rank) VALUES ('integrity-check', 1)")
            )
        )
    return True


# --- what is found ----------------------------------------------------------------------------------


def test_all_words_must_be_there_in_any_order_and_case_and_accents_do_not_matter(house: Store) -> None:
    chat = conversation(house)
    both = say(house, chat, "The quick BROWN fox went to the Café.")
    say(house, chat, "A brown bear.")
    assert ids(house, "fox brown") == [both]
    assert ids(house, "cafe BROWN") == [both]
    assert ids(house, "CAFÉ") == [both]
    assert ids(house, "bro fox") == []
    assert ids(house, "brown nobody") == []


def test_a_phrase_must_stand_as_it_is_and_a_star_ends_a_beginning(house: Store) -> None:
    chat = conversation(house)
    one = say(house, chat, "machine learning is fun")
    other = say(house, chat, "learning by machine, from machinery")
    assert ids(house, '"machine learning"') == [one]
    assert ids(house, "machine learning") == [other, one]
    assert ids(house, "machiner*") == [other]
    assert ids(house, "machin") == []
    assert ids(house, '"is fu"*') == [one]
    assert ids(house, "from_machinery") == [other]


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
    house: Store, said: str, queries: list[str]
) -> None:
    chat = conversation(house)
    one = say(house, chat, "前面的话。" + said)
    say(house, chat, "something else entirely 别的内容")
    for query in queries:
        assert ids(house, query) == [one], query
        assert marked(house, query), query
    assert marked(house, queries[0])[0].casefold() == queries[0].casefold()
    for absent in ("器机", "习机", "天的", "模学", "京東", "울서"):
        assert ids(house, absent) == [], absent


def test_a_message_is_found_by_its_text_and_its_files_names_and_by_nothing_else(house: Store) -> None:
    chat = conversation(house)
    file = Attachment(name="quarterly_report.pdf", extension="pdf", content="confidential numbers")
    asked = say(house, chat, UserContent(text="look at this", attachments=[file]))
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
    answered = say(house, chat, AssistantContent(steps=steps))
    assert ids(house, "quarterly") == ids(house, "quarterly_report.pdf") == ids(house, "look") == [asked]
    assert ids(house, "revenue") == [answered]
    for hidden in ("confidential", "pondering", "tooling", "abandoned", "steps", "thinking", "user"):
        assert ids(house, hidden) == [], hidden


def test_titles_come_first_then_messages_and_the_newest_first(house: Store) -> None:
    old = conversation(house, "Garden plans")
    first = say(house, old, "the garden needs water")
    new = conversation(house, "A garden party")
    second = say(house, new, "whose garden?")
    found = find(house, "garden")
    assert [(hit.rank, hit.kind, hit.conversation_id, hit.message_id) for hit in found.hits] == [
        (1, SearchKind.CONVERSATION, new, None),
        (2, SearchKind.CONVERSATION, old, None),
        (3, SearchKind.MESSAGE, new, second),
        (4, SearchKind.MESSAGE, old, first),
    ]
    assert [hit.conversation_title for hit in found.hits] == ["A garden party", "Garden plans"] * 2
    assert [hit.role for hit in found.hits] == [None, None, "user", "user"]
    assert ids(house, "garden", kind=SearchKind.MESSAGE) == [second, first]
    assert ids(house, "garden", kind=SearchKind.CONVERSATION) == [None, None]
    assert ids(house, "garden", conversation_id=old) == [None, first]
    assert ids(house, "garden", conversation_id=old, kind=SearchKind.MESSAGE) == [first]
    paged = [find(house, "garden", page=page, size=3) for page in (1, 2, 3)]
    assert [hit for each in paged for hit in each.hits] == found.hits
    assert [each.total for each in paged] == [4, 4, 4]


def test_more_than_a_thousand_hits_are_not_counted_and_the_answer_says_so(house: Store) -> None:
    chat = conversation(house)
    rows = [row_of(chat, UserContent(text="again"), ANN) for _ in range(1002)]

    def work(session: Any) -> None:
        session.execute(insert(MessageRow), rows)
        index_messages(session.connection(), rows)

    house.write_now(work)
    found = find(house, "again", page=10)
    assert (found.total, found.has_more, len(found.hits)) == (1000, True, 100)
    assert found.hits[0].message_id == rows[101]["id"]
    assert find(house, "again", page=11).hits == []


def test_a_snippet_shows_the_place_and_offsets_that_count_characters(house: Store) -> None:
    chat = conversation(house)
    say(house, chat, "🙂 e\u0301tude " * 300 + "the needle 🙂 in the haystack" + " straw" * 300)
    (hit,) = find(house, "needle haystack").hits
    assert len(hit.snippet.text) == 200
    assert marked(house, "needle haystack") == ["needle", "haystack"]
    assert marked(house, "étude")[:2] == ["étude", "étude"]


# --- whose it is ------------------------------------------------------------------------------------


def test_only_ones_own_is_found(house: Store) -> None:
    anns, bens = conversation(house, "Treasure"), conversation(house, "Treasure map", who=BEN)
    mine = say(house, anns, "treasure under the oak")
    theirs = say(house, bens, "treasure under the elm", who=BEN)
    assert ids(house, "treasure") == [None, mine]
    assert ids(house, "treasure", who=BEN) == [None, theirs]
    assert [hit.conversation_id for hit in find(house, "treasure").hits] == [anns, anns]
    for forged in (f"message={BEN.user_id}", f'"message={BEN.user_id}"', f"in={bens}", f"in={bens[:8]}*"):
        assert find(house, forged).hits == [], forged
    for foreign in (bens, new_id()):
        with pytest.raises(NotFound):
            find(house, "treasure", conversation_id=foreign)


# --- what changes -----------------------------------------------------------------------------------


def test_what_is_deleted_is_not_found_and_leaves_nothing_in_the_index(house: Store) -> None:
    chat, other = conversation(house, "Doomed words"), conversation(house)
    first = say(house, chat, "words to keep for a while")
    second = say(house, chat, "words to delete")
    kept = say(house, other, "other words", who=ANN)
    house.write_now(lambda session: session.execute(delete(MessageRow).where(MessageRow.id == second)))
    assert ids(house, "words") == [None, kept, first]
    house.write_now(
        lambda session: session.execute(delete(ConversationRow).where(ConversationRow.id == chat))
    )
    assert ids(house, "words") == [kept]
    house.write_now(lambda session: session.execute(delete(User).where(User.id == 1)))
    assert ids(house, "words") == []
    assert index_of(house) == []
    assert is_sound(house)


def test_a_changed_message_and_a_new_title_are_found_by_what_they_are_now(house: Store) -> None:
    chat = conversation(house, "First name")
    message_id = say(house, chat, "half an ans")
    later = row_of(chat, UserContent(text="half an answer, and its end"), ANN) | {"id": message_id}

    def change(session: Any) -> None:
        session.execute(
            update(MessageRow).where(MessageRow.id == message_id).values(content=later["content"])
        )
        index_message(session.connection(), later)
        session.execute(update(ConversationRow).values(title="Second name"))
        index_title(session.connection(), user_id=1, conversation_id=chat, title="Second name")

    house.write_now(change)
    assert ids(house, "ans") == []
    assert ids(house, "answer end") == [message_id]
    assert ids(house, "first") == []
    assert ids(house, "second") == [None]
    assert len(index_of(house)) == 2
    assert is_sound(house)


def test_a_write_that_fails_leaves_no_words(house: Store) -> None:
    chat = conversation(house)
    row = row_of(chat, UserContent(text="never said"), ANN)

    def fails(session: Any) -> None:
        session.execute(insert(MessageRow).values(row))
        index_message(session.connection(), row)
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        house.write_now(fails)
    assert ids(house, "never") == []
    assert is_sound(house)


def test_what_was_there_before_the_index_is_put_into_it(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that makes the index, on a database of the step before, with more rows than a batch."""
    engine = open_engine(resolve_url(database_url, tmp_path))
    scripts = tmp_path / "migrations"
    for source in SCRIPTS.rglob("*.py"):
        if "versions" not in source.parts or source.name < "0005":
            target = scripts / source.relative_to(SCRIPTS)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr("luxx.infra.store.migrate.SCRIPTS", scripts)
        assert migrate(engine).after == "0004"
    store = Store(engine)
    store.write_now(add_people)
    now = utc_now()
    chats = [
        {"id": new_id(), "user_id": 1, "title": title, "tags": "[]", "created_at": now, "updated_at": now}
        for title in ("Tea and 茶", "New conversation")
    ]
    rows = [row_of(chats[0]["id"], UserContent(text=f"第{n}杯 cup {n}"), ANN) for n in range(250)]
    store.write_now(lambda session: session.execute(insert(ConversationRow), chats))
    store.write_now(lambda session: session.execute(insert(MessageRow), rows))
    migrate(engine)
    assert ids(store, "茶") == [None]
    assert ids(store, "conversation") == []
    assert ids(store, "cup 249") == ids(store, "第249杯") == [rows[249]["id"]]
    assert find(store, "cup").total == 250
    assert ids(store, "cup")[0] == rows[249]["id"]
    assert is_sound(store)
    store.close()


# --- whatever is asked or said ----------------------------------------------------------------------

SIGNS = st.text(st.sampled_from(list("\"'*():&|!<->^{}+-=\\/%_,.; aA机器学習é\u0301ﬁß½\n\t0٣")), max_size=60)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_no_query_and_no_text_breaks_it_and_each_text_finds_itself(house: Store) -> None:
    chat = conversation(house)

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(said=st.one_of(SIGNS, ANYTHING), asked=st.one_of(SIGNS, ANYTHING))
    def ask(said: str, asked: str) -> None:
        message_id = say(house, chat, said)
        find(house, asked)
        found = find(house, f'"{said.replace(chr(34), " ")}"')
        assert not found.total or message_id in [hit.message_id for hit in found.hits]
        assert found.total or not any(character.isalnum() for character in said)

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
        find(house, asked)


def test_of_an_endless_message_the_beginning_is_found(house: Store) -> None:
    chat = conversation(house)
    long = say(house, chat, " ".join(f"word{number}" for number in range(WORDS * 2)) + " 机器" * 10_000)
    assert ids(house, "word1 word9999") == [long]
    assert ids(house, f"word{WORDS * 2 - 1}") == []
    unspaced = say(house, chat, "".join(chr(0x4E00 + number % 20_000) for number in range(200_000)))
    assert ids(house, "一丁") == [unspaced]
    wide = say(house, chat, " ".join(f"{chr(0x10330 + n % 20) * 70}{n}" for n in range(WORDS)))
    assert wide is not None
    assert is_sound(house)


class Counted(str):
    """A text that counts how often it is looked through."""

    __slots__ = ("looks",)

    def find(self, *given: Any) -> int:
        self.looks = getattr(self, "looks", 0) + 1
        return super().find(*given)


def test_a_long_phrase_that_almost_stands_everywhere_is_not_tried_everywhere() -> None:
    phrase = '"' + "a " * 97 + 'b"'
    terms = terms_of(phrase)
    assert max(len(term.pieces) for term in terms) == MOST_PIECES
    assert [len(term.words) for term in terms_of("\u554a" * 200)] == [15, 7]
    text = Counted(fold("a " * 15 + "c " + "a " * 14 + "c "))
    text = Counted(str(text) * 1000)
    assert Places(terms).first(text) is None
    assert text.looks <= 600 * len(terms)


def test_a_phrase_of_many_words_is_found_by_all_of_them(house: Store) -> None:
    chat = conversation(house)
    words = [f"word{number}" for number in range(30)]
    message = say(house, chat, " ".join(words))
    say(house, chat, " ".join(words[:20]))
    assert ids(house, f'"{" ".join(words[:28])}"'[:199]) == [message]
    chinese = say(house, chat, "\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03" * 5)
    assert ids(house, "\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03" * 5) == [chinese]
