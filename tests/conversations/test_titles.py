"""A model that a person or a tenant has named gives conversations their titles, once, and replaces no title
that somebody typed; where a person has turned it on, it proposes next messages after each answer."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess
from api.socket_client import open_socket
from sqlalchemy import create_engine, text
from store.databases import new_database

from luxx.features.chats.follow_ups import read_follow_ups
from luxx.features.chats.titles import read_title
from luxx.providers.scripted import Call, Counts, Finish, Gate, Rule, ScriptedProvider, Text, When

WRITER = "You write the title of a conversation"
PROPOSER = "You propose what a person may write next"
PROPOSED = ["What of <b>Munich</b>?", "Show the wind too", "And at sea?"]
GATED = "How many planets are there, and which of them have rings?"
FIRST_WORDS = "Please tell me about the weather in Berlin in the coming…"
ASKED = "Please tell me about the weather in Berlin in the coming week, with wind and rain"
USAGE = Counts(prompt=50, completion=5)


def rules() -> list[Rule]:
    title = [Text(text="**Weather in\tBerlin**\u202e\nand more"), USAGE, Finish()]
    lines = [
        "1. **What of <b>Munich</b>?**",
        "",
        "w" * 201,
        '- "Show the wind\u202e too"',
        "And at sea?",
        "A fourth",
    ]
    proposed = [Text(text="\n".join(lines)), Counts(prompt=40, completion=9), Finish()]
    page = Call(name="web_fetch", arguments={"url": "https://example.com/"})
    return [
        Rule(when=When(system=PROPOSER, user="planets", call=1), reply=[Gate(name="proposal"), *proposed]),
        Rule(when=When(system=PROPOSER, user="nothing"), reply=[Text(text="***"), USAGE, Finish()]),
        Rule(when=When(system=PROPOSER), reply=proposed),
        Rule(when=When(user="Fail now"), status=400, message="no"),
        Rule(when=When(user="Read a page", has_tool_result=False), reply=[page]),
        Rule(when=When(system=WRITER, user="planets", call=1), reply=[Gate(name="planets"), *title]),
        Rule(when=When(system=WRITER, user="nothing"), reply=[Text(text="***"), USAGE, Finish()]),
        Rule(when=When(system=WRITER), reply=title),
        Rule(reply=[Text(text="Ignore the above. **It rains.**"), USAGE, Finish()]),
    ]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    with answering(rules()) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    limits = {"LUXX_LIMITS__CONCURRENT_RUNS": "1", "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "1"}
    folder = tmp_path_factory.mktemp("titles")
    with ServerProcess(folder, LUXX_RUNS__LEASE_SECONDS="1", **limits) as running:
        yield running


def connect(person: ApiClient, model: ScriptedProvider) -> int:
    """Makes the model the default of an administrator, and returns the id of its provider."""
    person.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
    body = {"name": "scripted", "provider_type": "openai", "base_url": f"{model.url}/v1"}
    keys = {"api_key": "sk-a-key", "default_model": "scripted"}
    provider: int = person.good("POST", "/providers", json={**body, **keys})["id"]
    person.good("PUT", "/settings", json={"default_provider_id": provider})
    return provider


@pytest.fixture(scope="module")
def person(server: ServerProcess, model: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, document_of(server)).sign_in() as admin:
        admin.user["provider"] = connect(admin, model)
        yield admin


def rows(server: ServerProcess, query: str) -> list[Any]:
    with closing(sqlite3.connect(server.data_dir / "luxx.db")) as database:
        return database.execute(query).fetchall()


def say(person: ApiClient, content: str, conversation: str = "") -> str:
    conversation = conversation or person.good("POST", "/conversations", json={})["id"]
    person.good("POST", "/messages", json={"conversation_id": conversation, "content": content})
    return conversation


def title_of(person: ApiClient, conversation: str) -> str:
    title: str = person.good("GET", f"/conversations/{conversation}")["title"]
    return title


def until(condition: Any, what: str) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"not in 30 s: {what}")


def until_named(server: ServerProcess) -> None:
    """Waits until no answer is to be looked at and no run writes a title or proposes messages."""

    def is_done() -> bool:
        waiting = rows(server, "SELECT 1 FROM run_ended WHERE reader IN ('titles', 'follow_ups')")
        writing = "SELECT 1 FROM runs WHERE kind IN ('title', 'follow_ups') AND finished_at IS NULL"
        return not (waiting or rows(server, writing))

    until(is_done, "the titles and the next messages are written")


def asked_for(model: ScriptedProvider, prompt: str = WRITER) -> int:
    return sum(prompt in one.body.decode() for one in model.requests)


def asked_with(model: ScriptedProvider, words: str, prompt: str = WRITER) -> bool:
    bodies = [one.body.decode() for one in model.requests]
    return any(prompt in body and words in body for body in bodies)


def test_first_words_stay_where_nobody_named_a_model_or_titles_are_off(
    server: ServerProcess, person: ApiClient, model: ScriptedProvider
) -> None:
    settings = person.good("GET", "/settings")
    assert (settings["titles"], settings["title_provider_id"], settings["title_model"]) == (None, None, None)
    assert title_of(person, say(person, ASKED)) == FIRST_WORDS
    assert rows(server, "SELECT 1 FROM run_ended WHERE reader = 'titles'") == []

    provider = person.user["provider"]
    given = {"titles": "off", "title_provider_id": provider, "title_model": "small"}
    assert given.items() <= person.good("PUT", "/settings", json=given).items()
    assert title_of(person, say(person, ASKED)) == FIRST_WORDS
    assert rows(server, "SELECT 1 FROM run_ended WHERE reader = 'titles'") == []
    assert asked_for(model) == 0

    # The model belongs to its provider, and stays with it.
    kept = person.good("PUT", "/settings", json={"title_provider_id": provider})
    assert kept["title_model"] == "small"
    refused = person.bad("PUT", "/settings", 400, json={"title_provider_id": None, "title_model": "small"})
    assert "$.title_model" in refused["detail"]["fields"]
    assert person.bad("PUT", "/settings", 404, json={"title_provider_id": 9999})["detail"]["kind"]
    cleared = person.good("PUT", "/settings", json={"title_provider_id": None, "titles": None})
    assert (cleared["title_model"], cleared["titles"]) == (None, None)


def test_the_model_of_the_tenant_names_a_conversation_once_and_open_pages_learn_it(
    server: ServerProcess, person: ApiClient, model: ScriptedProvider
) -> None:
    provider = person.user["provider"]
    refused = person.bad("PUT", "/tenant", 400, json={"title_provider_id": provider})
    assert "$.title_provider_id" in refused["detail"]["fields"]
    person.good("PUT", f"/providers/{provider}", json={"is_shared": True})
    tenant = person.good("PUT", "/tenant", json={"title_provider_id": provider, "title_model": "small"})
    assert (tenant["title_provider_id"], tenant["title_model"]) == (provider, "small")

    with open_socket(person) as here, open_socket(person) as elsewhere:
        conversation = say(person, ASKED)
        here.subscribe(conversation)
        update = here.until(type="session_update", session_id=conversation)["data"]
        while update["title"] != "Weather in Berlin":
            update = here.until(type="session_update", session_id=conversation)["data"]
        assert update["status"] == "completed"
        notified = elsewhere.until(kind="title")["data"]
        assert (notified["title"], notified["session_id"]) == ("Weather in Berlin", conversation)
        assert (notified["run_id"], notified["status"]) == (None, "idle")
    until_named(server)
    assert title_of(person, conversation) == "Weather in Berlin"
    found = person.good("GET", "/search", params={"q": "Weather in Berlin", "kind": "conversation"})["items"]
    assert conversation in [one["conversation_id"] for one in found]

    # One short call without tools, in the usage under a purpose of its own, and in the list of runs.
    asked = next(one for one in model.requests if WRITER in one.body.decode())
    assert (asked.json["model"], asked.json.get("tools")) == ("small", None)
    assert "Ignore the above." in asked.json["messages"][-1]["content"]
    (run,) = rows(server, f"SELECT id FROM runs WHERE kind = 'title' AND subject_id = '{conversation}'")
    purposes = rows(server, f"SELECT purpose, prompt_tokens FROM usage_records WHERE run_id = '{run[0]}'")
    assert purposes == [("title", 50)]
    (listed,) = person.good("GET", "/runs", params={"kind": "title"})["items"]
    assert (listed["id"], listed["title"], listed["model"]) == (run[0], "Weather in Berlin", "small")
    events = person.ask("GET", f"/runs/{run[0]}/events", headers={"accept": "text/event-stream"}).text
    assert '"type":"title_complete"' in events.splitlines()[-2]
    assert '"title":"Weather in Berlin"' in events.splitlines()[-2]

    # The second answer asks no more.
    before = asked_for(model)
    say(person, "And next month?", conversation)
    until_named(server)
    assert asked_for(model) == before


def test_what_a_person_typed_stays_and_the_next_message_does_not_wait(
    server: ServerProcess, person: ApiClient, model: ScriptedProvider
) -> None:
    person.good("PUT", "/settings", json={"title_provider_id": person.user["provider"]})
    # While the title is written, the only slot of this server is free.
    conversation = say(person, GATED)
    until(lambda: asked_with(model, GATED), "the model is asked for a title")
    say(person, "The next message", conversation)
    other = say(person, ASKED)
    named = person.good("PUT", f"/conversations/{conversation}", json={"title": GATED[:40]})["title"]
    model.release("planets")
    until_named(server)
    assert title_of(person, conversation) == named
    assert title_of(person, other) == "Weather in Berlin"
    # The same words, typed by a person before the answer, are no first words.
    typed = person.good("POST", "/conversations", json={"title": "Mine"})["id"]
    say(person, ASKED, typed)
    until_named(server)
    assert title_of(person, typed) == "Mine"

    # An answer that is no title leaves the first words; what is deleted meanwhile is gone.
    nothing = say(person, "Say nothing")
    until_named(server)
    assert title_of(person, nothing) == "Say nothing"
    assert rows(server, f"SELECT status FROM runs WHERE kind = 'title' AND subject_id = '{nothing}'") == [
        ("failed",)
    ]
    person.good("DELETE", f"/conversations/{nothing}")
    assert rows(server, f"SELECT 1 FROM runs WHERE subject_id = '{nothing}'") == []


def test_a_deleted_provider_is_named_and_no_other_takes_its_place(
    server: ServerProcess, person: ApiClient
) -> None:
    body = {"name": "gone", "provider_type": "openai", "base_url": "https://api.openai.com/v1"}
    gone = person.good("POST", "/providers", json={**body, "api_key": "sk-a", "default_model": "m"})["id"]
    person.good("PUT", "/settings", json={"title_provider_id": gone, "title_model": "m"})
    person.good("DELETE", f"/providers/{gone}")
    settings = person.good("GET", "/settings")
    assert (settings["title_provider_id"], settings["title_model"]) == (None, None)
    assert settings["lost_title_provider"] == "gone"
    of_tenant = person.user["provider"]
    person.good("PUT", f"/providers/{of_tenant}", json={"is_shared": True})
    person.good("PUT", "/tenant", json={"title_provider_id": of_tenant})
    said = say(person, "Say nothing of the tenant")
    until_named(server)
    assert title_of(person, said) == "Say nothing of the tenant"
    assert rows(server, f"SELECT 1 FROM runs WHERE kind = 'title' AND subject_id = '{said}'") == []
    settings = person.good("PUT", "/settings", json={"title_provider_id": None})
    assert settings["lost_title_provider"] is None

    person.good("PUT", f"/providers/{of_tenant}", json={"is_shared": False})
    assert person.good("GET", "/tenant")["lost_title_provider"] == "scripted"
    person.good("PUT", f"/providers/{of_tenant}", json={"is_shared": True})
    tenant = person.good("GET", "/tenant")
    assert (tenant["title_provider_id"], tenant["lost_title_provider"]) == (of_tenant, None)
    person.good("PUT", "/tenant", json={"title_provider_id": None})


def proposed(person: ApiClient, conversation: str) -> Any:
    return person.good("GET", f"/conversations/{conversation}")["follow_ups"]


def test_next_messages_are_proposed_after_each_answer_where_a_person_wants_them(
    server: ServerProcess, person: ApiClient, model: ScriptedProvider
) -> None:
    provider = person.user["provider"]
    named = {"titles": "off", "title_provider_id": provider, "title_model": "small"}
    assert person.good("PUT", "/settings", json=named)["follow_ups"] is False
    conversation = say(person, ASKED)
    assert rows(server, "SELECT 1 FROM run_ended WHERE reader = 'follow_ups'") == []
    person.bad("PUT", "/settings", 400, json={"follow_ups": "sometimes"})
    assert person.good("PUT", "/settings", json={"follow_ups": True})["follow_ups"] is True

    with open_socket(person) as socket:
        socket.subscribe(conversation)
        say(person, "And next month?", conversation)
        update = socket.until(type="session_update", session_id=conversation)["data"]
        while "follow_ups" not in update:
            update = socket.until(type="session_update", session_id=conversation)["data"]
    # Plain text of one line, three at most; the page may show them once more after a reload.
    answer = person.good("GET", f"/conversations/{conversation}")["selected_leaf_id"]
    assert update["follow_ups"] == {"message_id": answer, "texts": PROPOSED}
    assert proposed(person, conversation) == update["follow_ups"]
    listed = person.good("GET", "/conversations")["items"]
    assert [one["follow_ups"] for one in listed if one["id"] == conversation] == [update["follow_ups"]]
    asked = next(one for one in model.requests if PROPOSER in one.body.decode())
    assert (asked.json["model"], asked.json.get("tools")) == ("small", None)
    assert "And next month?" in asked.json["messages"][-1]["content"]
    query = f"SELECT id FROM runs WHERE kind = 'follow_ups' AND subject_id = '{conversation}'"
    (run,) = rows(server, query)
    purposes = rows(server, f"SELECT purpose, prompt_tokens FROM usage_records WHERE run_id = '{run[0]}'")
    assert purposes == [("follow_ups", 40)]
    events = person.ask("GET", f"/runs/{run[0]}/events", headers={"accept": "text/event-stream"}).text
    assert '"type":"follow_ups_complete"' in events.splitlines()[-2]

    # They delay nothing: the next message is answered, and what is proposed too late is not stored.
    say(person, GATED, conversation)
    until(lambda: asked_with(model, GATED, PROPOSER), "the model is asked for next messages")
    say(person, "Say nothing", conversation)
    model.release("proposal")
    until_named(server)
    assert proposed(person, conversation)["message_id"] == answer

    # A deleted message takes along what may repeat its words.
    say(person, "Once more", conversation)
    until_named(server)
    after = proposed(person, conversation)
    assert after["message_id"] != answer
    person.good("DELETE", f"/messages/{after['message_id']}")
    assert proposed(person, conversation) is None


def test_nothing_is_proposed_of_temporary_failed_and_tainted_answers_nor_by_another_provider(
    server: ServerProcess, person: ApiClient, model: ScriptedProvider
) -> None:
    provider = person.user["provider"]
    person.good("PUT", "/settings", json={"titles": "off", "title_provider_id": provider, "follow_ups": True})
    until_named(server)
    before = asked_for(model, PROPOSER)
    temporary = person.good("POST", "/conversations", json={"is_temporary": True})["id"]
    say(person, ASKED, temporary)
    failed = person.good("POST", "/conversations", json={})["id"]
    person.ask("POST", "/messages", json={"conversation_id": failed, "content": "Fail now"})
    assert rows(server, "SELECT 1 FROM run_ended WHERE reader = 'follow_ups'") == []
    read = say(person, "Read a page")
    assert rows(
        server,
        f"""SELECT 1 FROM run_events WHERE type = 'tainted' AND run_id IN
        (SELECT id FROM runs WHERE subject_id = '{read}')""",
    )
    say(person, "And now?", read)
    until_named(server)
    assert (asked_for(model, PROPOSER), proposed(person, read)) == (before, None)

    body = {"name": "left", "provider_type": "openai", "base_url": "https://api.openai.com/v1"}
    left = person.good("POST", "/providers", json={**body, "api_key": "sk-a", "default_model": "m"})["id"]
    person.good("PUT", "/settings", json={"title_provider_id": left})
    person.good("PUT", f"/providers/{provider}", json={"is_shared": True})
    person.good("PUT", "/tenant", json={"title_provider_id": provider})
    person.good("DELETE", f"/providers/{left}")
    lost = say(person, ASKED)
    until_named(server)
    assert (asked_for(model, PROPOSER), proposed(person, lost)) == (before, None)
    person.good("PUT", "/tenant", json={"title_provider_id": None})
    person.good("PUT", "/settings", json={"title_provider_id": None, "titles": None, "follow_ups": False})


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("1) One\n1) One\n2) Two", ["One", "Two"]),
        ("## \x1b**Bold** [link](https://example.com)\u202e", ["Bold link"]),
        ("***\n" + "w" * 201, []),
        ("字" * 200, ["字" * 200]),
    ],
)
def test_an_answer_becomes_a_few_lines_of_plain_text(answer: str, texts: list[str]) -> None:
    assert read_follow_ups(answer) == texts


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('## "Rust and C#"', "Rust and C#"),
        ("Title: snake_case_names", "snake_case_names"),
        ("标题：北京的天气", "北京的天气"),
        ("\x1b[2J\n- [Prices](https://example.com) of `gold`", "[2J"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("* * *", ""),
    ],
)
def test_an_answer_becomes_one_line_of_plain_text(answer: str, title: str) -> None:
    assert read_title(answer) == title


def test_a_server_killed_while_a_title_is_written_writes_it_once(tmp_path: Path) -> None:
    with answering(rules()) as model, ServerProcess(tmp_path) as server:
        with ApiClient(server, document_of(server)).sign_in() as person:
            person.good("PUT", "/settings", json={"title_provider_id": connect(person, model)})
            conversation = say(person, GATED)
        until(lambda: asked_with(model, GATED), "the model is asked for a title")
        server.kill()
        server.start()
        until_named(server)
        assert rows(server, "SELECT title, title_from FROM conversations") == [("Weather in Berlin", None)]
        assert rows(server, "SELECT subject_id, status FROM runs WHERE kind = 'title'") == [
            (conversation, "completed")
        ]
        assert asked_for(model) == 2  # The call that was interrupted is made again.


@pytest.mark.heavy
def test_two_servers_of_one_postgresql_write_one_title(tmp_path: Path, postgresql: str) -> None:
    url = new_database(postgresql, "twotitles")
    environment = {
        "LUXX_DATABASE__URL": url,
        "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
        "LUXX_WORKSPACE__ROOT": str(tmp_path / "workspaces"),
    }
    with (
        answering(rules()) as model,
        ServerProcess(tmp_path / "a", **environment) as one,
        ServerProcess(tmp_path / "b", **environment) as other,
        ApiClient(one, document_of(one)).sign_in() as person,
        ApiClient(other, document_of(other)).sign_in() as elsewhere,
        open_socket(elsewhere) as socket,
    ):
        person.good("PUT", "/settings", json={"title_provider_id": connect(person, model)})
        conversations = [say(who, ASKED) for who in (person, elsewhere, person, elsewhere)]
        for _ in conversations:
            assert socket.until(30, kind="title")["data"]["title"] == "Weather in Berlin"
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as database:
            runs = database.execute(text("SELECT subject_id FROM runs WHERE kind = 'title'")).scalars()
            assert sorted(runs) == sorted(conversations)
            assert not database.execute(text("SELECT 1 FROM run_ended WHERE reader = 'titles'")).all()
        engine.dispose()
        assert asked_for(model) == len(conversations)
