"""Skills of the system, a tenant and a project: what runs get, who may change them, what is refused."""

import io
import json
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import skills_ref
from api.client import ApiClient, document_of
from api.conftest import answering
from api.schema import Document
from api.server_process import ServerProcess

from luxx.domain.skills.differences import differences
from luxx.domain.skills.document import public_document, read_document
from luxx.providers.scripted import Call, Finish, Rule, ScriptedProvider, Text, When

Files = Mapping[str, bytes | str]
TEXT = "---\nname: {name}\ndescription: Of the {layer}.\n---\n\n{body}\n"
WAIT_SECONDS = 5.0


def skill_text(name: str, layer: str, body: str = "Do it well.") -> str:
    return TEXT.format(name=name, layer=layer, body=body)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("layers") / "data"
    for name in ("notes", "replaced", "edited"):
        put_folder(data_dir, name, skill_text(name, "system"))
    with ServerProcess(data_dir.parent, data_dir=data_dir) as started_server:
        yield started_server


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> Document:
    return document_of(server)


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    """Activates the skill that a message names, then answers."""
    called = Call(name="activate_skill", arguments={"name": "notes"}, id="call-1")
    rules = [
        Rule(when=When(user="activate", has_tool_result=False), reply=[called, Finish(reason="tool_calls")]),
        Rule(reply=[Text(text="Done."), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


def put_folder(data_dir: Path, name: str, text: str) -> None:
    (data_dir / "skills" / name).mkdir(parents=True, exist_ok=True)
    (data_dir / "skills" / name / "SKILL.md").write_text(text, "utf-8")


@pytest.fixture(scope="module")
def admin(server: ServerProcess, document: Document, model: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, document).sign_in() as person:
        host = model.url.removeprefix("http://")
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": [host]})
        connect(person, model)
        yield person


@pytest.fixture(scope="module")
def anna(
    server: ServerProcess, document: Document, admin: ApiClient, model: ScriptedProvider
) -> Iterator[ApiClient]:
    with ApiClient(server, document).register("anna") as person:
        connect(person, model)
        yield person


def connect(person: ApiClient, model: ScriptedProvider) -> None:
    body = {
        "name": "scripted",
        "provider_type": "openai",
        "base_url": f"{model.url}/v1",
        "api_key": "sk-a-key",
    }
    provider = person.good("POST", "/providers", json={**body, "default_model": "scripted"})
    person.good("PUT", "/settings", json={"default_provider_id": provider["id"]})


def new_skill(person: ApiClient, name: str, layer: str, **more: Any) -> dict[str, Any]:
    body = {
        "name": name,
        "description": f"Of the {layer}.",
        "scope": layer,
        "content": skill_text(name, layer),
    }
    return person.good("POST", "/skills", json={**body, **more})


def prompt_of(
    person: ApiClient, model: ScriptedProvider, project_id: str | None = None, text: str = "Hello"
) -> str:
    """The system prompt of a run in a new conversation."""
    conversation = person.good("POST", "/conversations", json={"project_id": project_id})["id"]
    tools = ["activate_skill"]
    person.good("POST", "/messages", json={"conversation_id": conversation, "content": text, "tools": tools})
    return json.dumps(model.requests[-1].json["messages"][0])


def listed(person: ApiClient, **query: Any) -> dict[tuple[str, str], dict[str, Any]]:
    items = person.good("GET", "/skills", params={"page_size": 100, **query})["items"]
    return {(one["scope"], one["name"]): one for one in items}


def test_the_steps_of_a_task_have_the_skills_and_agents_of_its_project(
    admin: ApiClient, anna: ApiClient, model: ScriptedProvider
) -> None:
    project = anna.good("POST", "/projects", json={"name": "Tasks"})["id"]
    skill = new_skill(anna, "of-task", "project", project_id=project)
    agent = {
        "name": "Of the project",
        "role": "helps",
        "project_id": project,
        "skills": ["of-task"],
        "tools": ["activate_skill"],
    }
    agent_id = anna.good("POST", "/agents", json=agent)["id"]
    steps = [{"id": "a", "name": "A", "goal": "Do it", "required_skills": ["of-task"]}]
    body = {"name": "T", "goal": "G", "agent_id": agent_id, "steps": steps}
    refused = anna.bad("POST", "/tasks", 400, json=body)
    assert "of-task" in str(refused)
    foreign = admin.good("POST", "/projects", json={"name": "Foreign"})["id"]
    assert "no project with this id" in str(
        anna.bad("POST", "/tasks", 400, json={**body, "project_id": foreign})
    )
    task = anna.good("POST", "/tasks", json={**body, "project_id": project})["id"]
    before = len(model.requests)
    anna.http.post(f"/tasks/{task}/execute", json={}).raise_for_status()
    done = anna.good("GET", f"/tasks/{task}")
    assert (done["status"], [step["status"] for step in done["steps"]]) == ("completed", ["completed"])
    assert "- of-task: Of the project." in json.dumps(model.requests[before].json["messages"][0])
    # Outside of the project the task says what is missing.
    anna.good("PUT", f"/tasks/{task}", json={"project_id": None})
    assert anna.bad("POST", f"/tasks/{task}/execute", 409, json={})["detail"]["kind"] != ""
    anna.good("DELETE", f"/skills/{skill['id']}")


def test_a_nearer_layer_hides_a_farther_one_in_lists_and_runs(
    admin: ApiClient, anna: ApiClient, model: ScriptedProvider
) -> None:
    project = admin.good("POST", "/projects", json={"name": "One"})["id"]
    assert "notes: Of the system." in prompt_of(admin, model, project)
    of_tenant = new_skill(admin, "notes", "tenant")
    of_project = new_skill(admin, "notes", "project", project_id=project)
    seen = listed(admin, project_id=project)
    flags = {scope: seen[scope, "notes"]["is_overridden"] for scope in ("system", "tenant", "project")}
    assert flags == {"system": True, "tenant": True, "project": False}
    assert listed(admin)["tenant", "notes"]["is_overridden"] is False
    assert "notes: Of the project." in prompt_of(admin, model, project)
    assert "notes: Of the tenant." in prompt_of(admin, model)
    # Without a review it is for the runs of its owner, and hides nothing from others.
    assert "notes: Of the system." in prompt_of(anna, model)
    admin.good("POST", f"/skills/{of_tenant['id']}/review", json={"digest": of_tenant["digest"]})
    assert "notes: Of the tenant." in prompt_of(anna, model)
    for one in (of_project, of_tenant):
        admin.good("DELETE", f"/skills/{one['id']}")
    assert "notes: Of the system." in prompt_of(admin, model, project)


def test_a_tenant_disables_and_replaces_skills_of_the_system(
    server: ServerProcess, document: Document, admin: ApiClient, anna: ApiClient, model: ScriptedProvider
) -> None:
    own = new_skill(admin, "our-way", "tenant")
    admin.good("POST", f"/skills/{own['id']}/review", json={})
    project = admin.good("POST", "/projects", json={"name": "Two"})["id"]
    of_project = new_skill(admin, "project-way", "project", project_id=project)
    anna.bad("POST", "/tenant/skills/disable", 403, json={"skill_name": "replaced"})
    admin.bad("POST", "/tenant/skills/disable", 404, json={"skill_name": "no-such"})
    tenant_id = admin.good("POST", "/admin/tenants", json={"name": "Others"})["id"]
    body: dict[str, Any] = {"username": "berta", "password": "a-password-of-a-test-1", "permission_level": 4}
    admin.good("POST", "/auth/users", json={**body, "tenant_id": tenant_id})
    with ApiClient(server, document).sign_in("berta", body["password"]) as berta:
        connect(berta, model)
        foreign = new_skill(berta, "foreign", "tenant")
        for wrong in (foreign["id"], of_project["id"], "system:notes", "x"):
            override = {"skill_name": "replaced", "override_skill_id": wrong}
            admin.bad("POST", "/tenant/skills/override", 400, json=override)
        override = {"skill_name": "Replaced", "override_skill_id": own["id"]}
        assert admin.good("POST", "/tenant/skills/override", json=override)["configs"] == [
            {"system_skill_name": "replaced", "action": "override", "override_skill_id": own["id"]}
        ]
        assert listed(admin)["system", "replaced"]["is_overridden"] is True
        prompt = prompt_of(anna, model)
        assert "our-way: Of the tenant." in prompt
        assert "replaced" not in prompt
        admin.good("POST", "/tenant/skills/disable", json={"skill_name": "replaced"})
        assert listed(admin)["system", "replaced"]["is_disabled"] is True
        assert "replaced" not in prompt_of(anna, model)
        assert "replaced: Of the system." in prompt_of(berta, model)
        assert berta.good("GET", "/tenant/skills/config") == {"configs": []}
    admin.good("POST", "/tenant/skills/enable", json={"skill_name": "replaced"})
    assert "replaced: Of the system." in prompt_of(anna, model)


def test_only_an_administrator_or_the_owner_of_a_project_changes_skills(
    admin: ApiClient, anna: ApiClient
) -> None:
    body = {"name": "mine", "description": "Of mine.", "content": "Do it."}
    anna.bad("POST", "/skills", 403, json={**body, "scope": "tenant"})
    anna.bad("POST", "/skills", 400, json={**body, "scope": "system"})
    anna.bad("POST", "/skills", 400, json={**body, "scope": "project"})
    foreign = admin.good("POST", "/projects", json={"name": "Three"})["id"]
    anna.bad("POST", "/skills", 404, json={**body, "scope": "project", "project_id": foreign})
    project = anna.good("POST", "/projects", json={"name": "Four"})["id"]
    mine = anna.good("POST", "/skills", json={**body, "scope": "project", "project_id": project})
    taken = {**body, "name": "mine", "scope": "project", "project_id": project}
    assert anna.bad("POST", "/skills", 409, json=taken)["detail"]["kind"] == "skill_name_taken"
    path = f"/skills/{mine['id']}"
    anna.bad("POST", f"{path}/review", 403, json={})
    admin.bad("GET", path, 404)
    of_tenant = new_skill(admin, "of-tenant", "tenant")
    anna.good("GET", f"/skills/{of_tenant['id']}")
    for method, more in (("DELETE", {}), ("PUT", {"json": {"enabled": False}})):
        anna.bad(method, f"/skills/{of_tenant['id']}", 403, **more)
        admin.bad(method, "/skills/system:notes", 403, **more)
    changed = {"tools": ["file_read", "shell_execute(git *)"], "trigger_patterns": [{"pattern": "会议纪要"}]}
    saved = anna.good("PUT", path, json={**changed, "name": "会议_纪要", "enabled": False})
    assert (saved["name"], saved["tools"], saved["enabled"]) == ("会议_纪要", changed["tools"], False)
    assert saved["trigger_patterns"] == [{"pattern": "会议纪要", "weight": 1.0}]
    assert anna.good("PUT", path, json={"trigger_patterns": None, "tools": None})["tools"] is None
    assert "会议_纪要" in anna.http.get(f"{path}/content").text
    anna.good("DELETE", path)
    anna.bad("GET", path, 404)


def test_a_review_and_a_skill_that_is_hidden_can_be_compared_with(admin: ApiClient, anna: ApiClient) -> None:
    packed = zip_of({"SKILL.md": skill_text("notes", "tenant"), "a.md": "A", "b.md": "B"})
    form = {"data": {"scope": "tenant"}, "files": {"file": ("skill.zip", packed)}}
    skill = admin.good("POST", "/skills/upload", **form)
    path = f"/skills/{skill['id']}"
    compared = f"{path}/differences"
    assert (skill["hides"], skill["was_reviewed"]) == ("system:notes", False)
    hidden = admin.good("GET", compared, params={"against": "hidden"})
    assert "\n-description: Of the system.\n+description: Of the tenant.\n" in hidden["text"]
    assert [file["change"] for file in hidden["files"]] == ["added", "added"]
    assert "+Do it well." in admin.good("GET", compared)["text"].split("\n")
    assert "+Do it well." in admin.good("GET", "/skills/system:notes/differences")["text"].split("\n")
    admin.bad("GET", compared, 400, params={"against": "none"})
    admin.good("POST", f"{path}/review", json={})
    text = skill_text("notes", "tenant", "Do it well.\nAnd slowly.").encode()
    changed = admin.good("PUT", f"{path}/content", content=text)
    assert changed["was_reviewed"] is True
    since = admin.good("GET", compared, params={"against": "reviewed"})
    assert [line for line in since["text"].split("\n") if line[0] in "+-"] == ["+And slowly."]
    assert since["files"] == []
    # Read by all of the tenant, as its text is; a project's only by its owner.
    assert anna.good("GET", compared, params={"against": "reviewed"}) == since
    project = anna.good("POST", "/projects", json={"name": "Hers"})["id"]
    own = new_skill(anna, "notes", "project", project_id=project)
    assert own["hides"] == skill["id"]
    admin.bad("GET", f"/skills/{own['id']}/differences", 404, params={"against": "hidden"})
    anna.good("DELETE", f"/projects/{project}")
    admin.good("DELETE", path)


def test_texts_of_any_length_are_compared_within_bounds() -> None:
    lines = [f"line {number}" for number in range(5_000)]
    changed = [*lines[:2_000], "another", *lines[2_001:]]
    before, after = ({"SKILL.md": "\n".join(one).encode()} for one in (lines, changed))
    found = differences(before, after).text.split("\n")
    assert found == ["@@", *(f" {lines[n]}" for n in (1997, 1998, 1999)), "-line 2000", "+another",
                     *(f" {lines[n]}" for n in (2001, 2002, 2003))]  # fmt: skip
    backwards = {"SKILL.md": "\n".join(lines[::-1]).encode()}
    whole = differences(before, backwards).text.split("\n")
    assert len(whole) == 10_000
    ends = {"SKILL.md": before["SKILL.md"].replace(b"\n", b"\r\n")}
    assert "ends of lines" in differences(before, ends).text
    assert differences(before, before).text == ""


def test_a_folder_with_its_file_in_lower_case_is_read_exported_and_activated(
    server: ServerProcess, admin: ApiClient, tmp_path: Path
) -> None:
    """And one whose file is gone says so."""
    text = skill_text("small", "system")
    put_folder(server.data_dir, "small", text)
    folder = server.data_dir / "skills" / "small"
    (folder / "SKILL.md").rename(folder / "skill.md")
    wait_for(lambda: ("system", "small") in listed(admin), seconds=10)
    path = "/skills/system:small"
    assert admin.http.get(f"{path}/content").content == text.encode()
    with zipfile.ZipFile(io.BytesIO(admin.http.get(f"{path}/export").content)) as archive:
        assert archive.namelist() == ["small/SKILL.md"]
    arguments = {"arguments": {"name": "small"}}
    found = admin.good("POST", "/tools/activate_skill/execute", json=arguments)["data"]
    assert (found["instructions"].strip(), "files" in found) == ("Do it well.", False)
    (folder / "skill.md").unlink()
    assert admin.http.get(f"{path}/content").status_code == 404


def test_content_comes_back_byte_for_byte_and_an_export_is_a_valid_skill(
    admin: ApiClient, tmp_path: Path
) -> None:
    content = (
        "\ufeff---\r\nname: 数据_分析\r\ndescription: 'Reads: data'\r\n"
        "triggers: [分析数据, {pattern: data, weight: 2}]\r\nversion: 2\r\n"
        "tools: [file_read, 'shell_execute(git *)']\r\nempty: []\r\ndisable-model-invocation: true\r\n---\r\n"
        "\r\nDo --- it.\r\n\r\n"
    )
    packed = zip_of({"other/skill.md": content, "other/scripts/run.py": b"\x00\xff"})
    form = {"data": {"scope": "tenant"}, "files": {"file": ("skill.zip", packed)}}
    skill = admin.good("POST", "/skills/upload", **form)
    assert skill["name"] == "数据_分析"
    assert "its folder's is other" in skill["warning"]
    assert skill["is_for_people"] is True
    assert (skill["version"], skill["tools"]) == ("2", ["file_read", "shell_execute(git *)"])
    path = f"/skills/{skill['id']}"
    assert admin.http.get(f"{path}/content").content == content.encode()
    text = skill_text("数据-分析", "tenant", "Éé").encode()
    assert admin.good("PUT", f"{path}/content", content=text)["digest"] != skill["digest"]
    assert admin.http.get(f"{path}/content").content == text
    assert admin.good("PUT", f"{path}/content", content=content.encode())["digest"] == skill["digest"]
    with zipfile.ZipFile(io.BytesIO(admin.http.get(f"{path}/export").content)) as archive:
        archive.extractall(tmp_path)
    assert skills_ref.validate(tmp_path / "数据-分析") == []
    assert (tmp_path / "数据-分析/scripts/run.py").read_bytes() == b"\x00\xff"
    admin.good("DELETE", path)


def zip_of(files: Files, *, link: str | None = None, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if link is not None:
            entry = zipfile.ZipInfo(link)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, "/etc/passwd")
    return packed.getvalue()


GOOD = skill_text("good", "tenant")
LARGE = b"x" * (1024 * 1024)
BAD_UPLOADS: dict[str, bytes] = {
    "no path inside the skill": zip_of({"SKILL.md": GOOD, "../evil.py": "x"}),
    "'/etc/x' is no path": zip_of({"SKILL.md": GOOD, "/etc/x": "x"}),
    "is a link": zip_of({"SKILL.md": GOOD}, link="passwd"),
    "at most 100 files": zip_of({"SKILL.md": GOOD, **{f"{number}": "x" for number in range(100)}}),
    "1 MB, the limit for a file": zip_of({"SKILL.md": GOOD, "bomb": LARGE * 200}),
    "more than 10 MB in all": zip_of({"SKILL.md": GOOD, **{f"{number}": LARGE for number in range(10)}}),
    "more than 1000 entries": zip_of({"SKILL.md": GOOD, **{f"{number}/": "" for number in range(1000)}}),
    "no SKILL.md at its top": zip_of({"a/SKILL.md": GOOD, "b/SKILL.md": GOOD}),
    "have one name": zip_of({"SKILL.md": GOOD, "a": "x", "A": "x"}),
    "is below a file": zip_of({"SKILL.md": GOOD, "a": "x", "a/b": "x"}),
    "cannot be read": b"PK\x03\x04" + b"\x00" * 100,
    "does not begin with front matter": b"Do it.",
    "is larger than 40 KB": (GOOD + "x" * 50_000).encode(),
    "a YAML alias": b"---\nname: a\ndescription: &a b\nb: *a\n---\nx",
}


def test_a_hostile_upload_is_refused_whole(admin: ApiClient) -> None:
    for problem, upload in BAD_UPLOADS.items():
        files = {"file": ("skill.zip", upload)}
        response = admin.ask("POST", "/skills/upload", data={"scope": "tenant"}, files=files)
        assert response.status_code in (400, 413), problem
        assert problem in response.json()["error"], problem
    assert ("tenant", "good") not in listed(admin)


ACCEPTED = {
    "numbers": "name: 2024\ndescription: 7\n",
    "dates": "name: dated\ndescription: x\nmetadata:\n  since: 2026-02-31\n",
    "unicode": "name: 数据分析\ndescription: 分析数据。\n",
    "blocks": (
        "name: blocks\ndescription: |\n  One\n  Two\nlicense: MIT\ncompatibility: any\n"
        "allowed-tools: Read Bash(git:*)\n"
    ),
}


def test_what_the_public_validator_accepts_can_be_imported(tmp_path: Path) -> None:
    for front in ACCEPTED.values():
        text = f"---\n{front}---\n"
        name = front.split("name: ")[1].split("\n")[0]
        put_folder(tmp_path, name, text)
        assert skills_ref.validate(tmp_path / "skills" / name) == []
        assert read_document(text.encode()).name == name
        assert public_document(text.encode()) == text.encode()


def test_a_changed_byte_ends_a_review_and_the_text_taints_the_run(
    admin: ApiClient, anna: ApiClient, model: ScriptedProvider
) -> None:
    packed = zip_of({"SKILL.md": skill_text("notes", "tenant"), "form.md": "The form."})
    form = {"data": {"scope": "tenant"}, "files": {"file": ("skill.zip", packed)}}
    skill = admin.good("POST", "/skills/upload", **form)
    path = f"/skills/{skill['id']}"
    assert skill["is_reviewed"] is False
    assert (
        admin.bad("POST", f"{path}/review", 409, json={"digest": "0" * 64})["detail"]["kind"]
        == "skill_changed"
    )
    assert admin.good("POST", f"{path}/review", json={"digest": skill["digest"]})["is_reviewed"] is True
    assert activated(anna) == ("Do it well.", False)
    changed = admin.good(
        "PUT", f"{path}/content", content=skill_text("notes", "tenant", "Do it well!").encode()
    )
    assert (changed["is_reviewed"], changed["digest"] == skill["digest"]) == (False, False)
    assert activated(admin) == ("Do it well!", True)
    # Others have the system's again.
    assert activated(anna) == ("Do it well.", False)
    assert "notes: Of the system." in prompt_of(anna, model)
    admin.good("PUT", path, json={"enabled": False})
    assert "notes: Of the system." in prompt_of(admin, model)
    admin.good("DELETE", path)


def activated(person: ApiClient) -> tuple[str, bool]:
    """The instructions that a run gets when it activates `notes`, and whether it is tainted by them."""
    conversation = person.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": "activate it", "tools": ["activate_skill"]}
    steps = person.good("POST", "/messages", json=body)["steps"]
    (result,) = (step for step in steps if step["type"] == "tool_result")
    events = person.good("GET", f"/conversations/{conversation}/events", params={"limit": 100})["events"]
    is_tainted = any(one["type"] == "tainted" for one in events)
    return json.loads(result["content"])["data"]["instructions"], is_tainted


def test_a_changed_folder_is_in_the_next_run_without_a_restart(
    server: ServerProcess, admin: ApiClient, model: ScriptedProvider
) -> None:
    assert "edited: Of the system." in prompt_of(admin, model)
    put_folder(server.data_dir, "edited", skill_text("edited", "changed folder"))
    put_folder(server.data_dir, "broken", "no front matter")
    wait_for(lambda: "edited: Of the changed folder." in prompt_of(admin, model), seconds=3.0)
    assert "front matter" in listed(admin)["system", "broken"]["problem"]


def wait_for(is_true: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
