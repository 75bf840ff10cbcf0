"""`/knowledge`: documents of all formats are found at their place, by those who may read their base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from knowledge_documents import DOCUMENTS, HOSTILE
from knowledge_questions import QUESTIONS

from api.client import ApiClient
from api.conftest import answering, connect
from api.owned_ids import NO_UUID
from api.server_process import ServerProcess
from luxx.providers.scripted import Call, Counts, Finish, Rule, ScriptedProvider, Text, When

Json = dict[str, Any]
Join = Callable[..., ApiClient]

HOSTILE_NAMES = ("xxe.docx", "bomb.docx", "macros.docx", "broken.pdf", "blank.txt")


def make_base(person: ApiClient, name: str, **more: Any) -> str:
    return str(person.good("POST", "/knowledge", json={"name": name, **more})["id"])


def upload(person: ApiClient, base: str, files: dict[str, bytes]) -> list[Json]:
    """The events of the run that indexes these files."""
    form = [("file", (name, data)) for name, data in files.items()]
    return events_of(person, person.good("POST", f"/knowledge/{base}/documents", files=form))


def events_of(person: ApiClient, added: Json) -> list[Json]:
    path = f"/runs/{added['run']['id']}/events"
    with person.http.stream("GET", path) as stream:
        stream.read()
    answer = person.http.get(path, headers={"accept": "application/json"}).json()
    events: list[Json] = answer["data"]["events"]
    return events


def add_text(person: ApiClient, base: str, name: str, text: str) -> Json:
    added = person.good("POST", f"/knowledge/{base}/documents", json={"name": name, "text": text})
    if added["run"] is not None:
        events_of(person, added)
    document: Json = person.good("GET", f"/knowledge/{base}/documents/{added['items'][0]['id']}")
    return document


def search(person: ApiClient, base: str, query: str, limit: int = 5) -> list[Json]:
    items: list[Json] = person.good(
        "POST", f"/knowledge/{base}/search", json={"query": query, "limit": limit}
    )["items"]
    return items


def documents(person: ApiClient, base: str) -> dict[str, Json]:
    items = person.good("GET", f"/knowledge/{base}/documents?page_size=100")["items"]
    return {item["name"]: item for item in items}


def chunks(person: ApiClient, base: str, document: Json) -> list[Json]:
    path = f"/knowledge/{base}/documents/{document['id']}/chunks?page_size=100"
    items: list[Json] = person.good("GET", path)["items"]
    return items


def test_documents_of_all_formats_are_found_at_their_place(anna: ApiClient) -> None:
    base = make_base(anna, "All formats")
    events = upload(anna, base, {name: make() for name, make in DOCUMENTS.items()})
    assert (events[-1]["type"], events[-1]["documents"]) == ("index_complete", len(DOCUMENTS))
    parsed = {event["document_id"]: event["chunks"] for event in events[:-1]}
    stored = documents(anna, base)
    assert {item["status"] for item in stored.values()} == {"synced"}
    assert parsed == {item["id"]: item["chunks"] for item in stored.values()}
    run = anna.good("GET", f"/runs/{stored['report.pdf']['run_id']}")
    assert (run["kind"], run["subject_id"], run["status"], run["cost"]) == ("index", base, "completed", 0.0)
    names = {item["id"]: item["name"] for item in stored.values()}
    wrong: list[str] = []
    for question, name, place in QUESTIONS:
        best = search(anna, base, question, 1)[0]
        found = {key: best.get(key) for key in place}
        if (names[best["document_id"]], found) != (name, place):
            wrong.append(question)
    assert len(wrong) <= len(QUESTIONS) // 20, wrong
    assert [chunk["page"] for chunk in chunks(anna, base, stored["report.pdf"])] == list(range(1, 13))


def test_what_cannot_be_read_is_refused_or_fails_with_its_reason_and_can_be_retried(anna: ApiClient) -> None:
    base = make_base(anna, "Hostile")
    path = f"/knowledge/{base}/documents"
    made = {name: (make(), reason) for name, make, reason in HOSTILE if name in HOSTILE_NAMES}
    events = upload(anna, base, {name: data for name, (data, _) in made.items()})
    assert events[-1]["failed"] == len(HOSTILE_NAMES)
    for name, document in documents(anna, base).items():
        assert (document["status"], document["chunks"]) == ("failed", 0)
        assert made[name][1] in document["reason"], name
    broken = documents(anna, base)["broken.pdf"]
    again = anna.good("POST", f"{path}/{broken['id']}/retry")
    events_of(anna, again)
    assert documents(anna, base)["broken.pdf"]["status"] == "failed"
    good = add_text(anna, base, "good.md", "# A\n\nGood.")
    failure = anna.bad("POST", f"{path}/{good['id']}/retry", 409)
    assert failure["detail"]["kind"] == "document_not_failed"
    for files in ({"a.exe": b"MZ"}, {"a.docm": b"PK"}, {"a.md": b"# A", "b.exe": b"MZ"}):
        form = [("file", (name, data)) for name, data in files.items()]
        assert anna.bad("POST", path, 400, files=form)["detail"]["kind"] == "document_type_refused"
    for body in ({}, {"name": "a.md"}, {"text": "a"}, {"name": "a.md", "text": "a", "file_id": "x"}):
        anna.bad("POST", path, 400, json=body)
    anna.bad("POST", path, 404, json={"file_id": NO_UUID})
    assert "a.md" not in documents(anna, base)


def test_a_document_of_the_same_name_replaces_it_and_keeps_the_chunks_that_are_the_same(
    anna: ApiClient,
) -> None:
    base = make_base(anna, "Versions")
    sections = [f"# Part {number}\n\nThe word of part {number} is w{number}x." for number in range(30)]
    first = add_text(anna, base, "parts.md", "\n\n".join(sections))
    assert (first["status"], first["chunks"]) == ("synced", 30)
    assert (
        anna.good(
            "POST", f"/knowledge/{base}/documents", json={"name": "parts.md", "text": "\n\n".join(sections)}
        )["run"]
        is None
    )
    sections[3] = "# Part 3\n\nIt has another word now, otherword."
    sections.insert(0, "# New\n\nThis is before all others.")
    second = add_text(anna, base, "parts.md", "\n\n".join(sections))
    assert (second["id"], second["chunks"]) == (first["id"], 31)
    assert search(anna, base, "w3x") == []
    assert search(anna, base, "otherword")[0]["heading"] == "Part 3"
    positions = [chunk["position"] for chunk in chunks(anna, base, second)]
    assert positions == list(range(31))
    file_id = anna.good("POST", "/files", files={"file": ("parts.md", b"# Only\n\nOne.")})["id"]
    added = anna.good("POST", f"/knowledge/{base}/documents", json={"file_id": file_id})
    events_of(anna, added)
    assert [chunk["text"] for chunk in chunks(anna, base, second)] == ["One."]
    events_of(anna, anna.good("POST", f"/knowledge/{base}/reindex"))
    assert search(anna, base, "only one")[0]["document_id"] == first["id"]
    anna.good("DELETE", f"/knowledge/{base}/documents/{first['id']}")
    assert search(anna, base, "only one") == []


def test_members_read_or_write_until_they_are_removed(anna: ApiClient, join: Join, tenant_id: int) -> None:
    base = make_base(anna, "Team")
    add_text(anna, base, "gate.md", "The code of the gate is 4711.")
    reader, writer, stranger, foreigner = join(), join(), join(), join(tenant_id)
    path = f"/knowledge/{base}"
    for person in (reader, stranger, foreigner):
        person.bad("GET", path, 404)
        person.bad("POST", f"{path}/search", 404, json={"query": "gate"})
    body = {"user_id": foreigner.user["id"], "right": "read"}
    assert anna.bad("POST", f"{path}/members", 404, json=body)["detail"]["kind"] == "user_not_found"
    for person, right in ((reader, "read"), (writer, "write")):
        anna.good("POST", f"{path}/members", json={"username": person.user["username"], "right": right})
        assert person.good("GET", path)["right"] == right
        assert [each["quote"] for each in search(person, base, "gate")] == ["The code of the gate is 4711."]
        assert base in [each["id"] for each in person.good("GET", "/knowledge")["items"]]
    tool = {"arguments": {"query": "gate"}}
    assert len(reader.good("POST", "/tools/knowledge_search/execute", json=tool)["data"]["passages"]) == 1
    reader.bad("POST", f"{path}/documents", 403, json={"name": "a.md", "text": "a"})
    reader.bad("DELETE", path, 403)
    writer.bad("PUT", path, 403, json={"name": "Mine"})
    assert add_text(writer, base, "key.md", "The key is below the mat.")["status"] == "synced"
    assert search(anna, base, "mat")[0]["title"] == "key.md"
    reader.bad("DELETE", f"{path}/members/{writer.user['id']}", 403)
    anna.good("PUT", f"{path}/members/{reader.user['id']}", json={"right": "write"})
    anna.good("DELETE", f"{path}/members/{reader.user['id']}")
    writer.good("DELETE", f"{path}/members/{writer.user['id']}")
    for person in (reader, writer):
        person.bad("POST", f"{path}/search", 404, json={"query": "gate"})
        failed = person.good("POST", "/tools/knowledge_search/execute", json=tool)
        assert (failed["success"], "no knowledge base" in failed["error"]) == (False, True)


def test_a_base_of_the_tenant_is_read_by_everybody_and_written_by_administrators(
    admin: ApiClient, join: Join
) -> None:
    person, other_admin = join(), join(level=4)
    assert person.bad("POST", "/knowledge", 403, json={"name": "All", "scope": "tenant"})
    base = make_base(admin, "Everybody", scope="tenant")
    assert person.good("GET", f"/knowledge/{base}")["right"] == "read"
    person.bad("POST", f"/knowledge/{base}/documents", 403, json={"name": "a.md", "text": "a"})
    add_text(other_admin, base, "rules.md", "Close the window.")
    assert search(person, base, "window")[0]["text"] == "Close the window."
    other_admin.bad("PUT", f"/knowledge/{base}", 403, json={"name": "Mine"})
    assert other_admin.good("PUT", f"/knowledge/{base}", json={"scope": "user"})["scope"] == "user"
    person.bad("GET", f"/knowledge/{base}", 404)
    for body, status in (
        ({"name": "Everybody"}, 409), ({"name": " "}, 400), ({"name": "P", "scope": "project"}, 400),
        ({"name": "P", "scope": "project", "project_id": NO_UUID}, 404),
        ({"name": "P", "project_id": NO_UUID}, 400),
    ):  # fmt: skip
        admin.bad("POST", "/knowledge", status, json=body)
    admin.good("DELETE", f"/knowledge/{base}")


def test_an_answer_searches_the_bases_of_its_conversation_and_cites_page_and_words(
    anna: ApiClient, admin: ApiClient, upstream: ScriptedProvider
) -> None:
    named, other = make_base(anna, "Named"), make_base(anna, "Other")
    upload(anna, named, {"report.pdf": DOCUMENTS["report.pdf"]()})
    report = documents(anna, named)["report.pdf"]
    add_text(anna, other, "crates.md", "Crate 7 weighs nothing at all.")
    rules = [
        Rule(
            name="searches",
            when=When(has_tool_result=False),
            reply=[
                Call(name="knowledge_search", arguments={"query": "weigh crate 7", "limit": 1}, id="call-1"),
                Finish(reason="tool_calls"),
            ],
        ),
        Rule(name="answers", reply=[Text(text="21 kilograms [1]."), Counts(completion=2), Finish()]),
    ]
    with answering(rules) as model:
        hosts = [each.url.removeprefix("http://") for each in (upstream, model)]
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": hosts})
        provider_id = connect(anna, model)
        agent: Json = {"name": "Clerk", "tools": [], "provider_id": provider_id}
        agent_id = anna.good("POST", "/agents", json=agent)["id"]
        anna.bad("POST", "/conversations", 404, json={"knowledge": [NO_UUID]})
        body = {"agent_id": agent_id, "knowledge": [named]}
        conversation = anna.good("POST", "/conversations", json=body)
        assert conversation["knowledge"] == [named]
        asked = {"conversation_id": conversation["id"], "content": "What does crate 7 weigh?"}
        answer = anna.good("POST", "/messages", json=asked)
        assert answer["citations"] == [
            {
                "index": 1,
                "base_id": named,
                "document_id": report["id"],
                "title": "report.pdf",
                "page": 7,
                "quote": "Page 7 tells that crate 7 weighs 21 kilograms.",
            }
        ]
        listed = anna.good("GET", f"/messages?conversation_id={conversation['id']}")["items"]
        assert answer["citations"] in [message["citations"] for message in listed]
        attached = f"- Named ({named})"
        for request in model.requests:
            assert attached in request.json["messages"][0]["content"]
        offered = model.requests[0].json["tools"]
        assert {tool["function"]["name"] for tool in offered} == {"knowledge_search", "result_read"}

    anna.good("PUT", f"/agents/{agent_id}", json={"knowledge": [named, other]})
    room = anna.good("POST", "/chat-rooms", json={"title": "T", "task": "Talk.", "knowledge": [named]})
    anna.good("DELETE", f"/knowledge/{named}")
    assert anna.good("GET", f"/agents/{agent_id}")["knowledge"] == [other]
    assert anna.good("GET", f"/chat-rooms/{room['id']}")["knowledge"] == []
    assert anna.good("GET", f"/conversations/{conversation['id']}")["knowledge"] == []


def test_of_a_form_beyond_the_quota_no_document_is_added(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, LUXX_FILES__QUOTA_MB="1") as server,
        ApiClient(server, None).register("ann") as ann,
    ):
        base = make_base(ann, "Small")
        form = [("file", (f"{name}.txt", b"Rye. " * 120_000)) for name in "ab"]
        refused = ann.http.post(f"/knowledge/{base}/documents", files=form)
        assert (refused.status_code, refused.json()["detail"]["kind"]) == (413, "quota_exceeded")
        assert documents(ann, base) == {}
        assert len(ann.good("POST", f"/knowledge/{base}/documents", files=form[:1])["items"]) == 1
        # The second file does not fit; the check of the whole form sees the third, which has its name.
        sizes = {"c": 1_000, "d": 500_000, "D": 100_000}
        form = [("file", (f"{name.lower()}.txt", b"r" * size)) for name, size in sizes.items()]
        refused = ann.http.post(f"/knowledge/{base}/documents", files=form)
        assert (refused.status_code, refused.json()["detail"]["kind"]) == (413, "quota_exceeded")
        assert list(documents(ann, base)) == ["a.txt"]
