"""Rules about paths apply to the target of a path: links made by a program do not get around them."""

import hashlib
import os
from pathlib import Path

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, ScriptedProvider
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, open_questions, set_rules

SECRET = "only for people"


@pytest.fixture
def workspace(own_server: ServerProcess) -> Path:
    """The administrator's workspace, with a secret file and with links to it such as programs can make."""
    folder = own_server.folder / "workspaces" / hashlib.sha256(b"1").hexdigest()
    for name in ("secrets", "docs/deep", "out"):
        (folder / name).mkdir(parents=True)
    (folder / "secrets/key.txt").write_text(SECRET, "utf-8")
    (folder / "docs/a.txt").write_text("an open word", "utf-8")
    (folder / "link.txt").symlink_to("secrets/key.txt")
    (folder / "docs/deep/far.txt").symlink_to("../../link.txt")
    (folder / "folder").symlink_to("secrets")
    (folder / "open.txt").symlink_to("docs/a.txt")
    (folder / "docs/escape").symlink_to("../out")
    os.link(folder / "secrets/key.txt", folder / "hard.txt")
    return folder


def read(path: str) -> Call:
    return Call(name="file_read", arguments={"path": path}, id=path)


def write(path: str) -> Call:
    return Call(name="file_write", arguments={"path": path, "content": "written"}, id=path)


async def results_by_path(ann: AsyncApiClient, *calls: Call) -> dict[str, Json]:
    """The result of each call, by its path."""
    async with ScriptedProvider(asks(*calls)) as model:
        conversation = await ann.conversation(model.url)
        await ann.wait_for_end((await ann.start_run(conversation))["id"])
        message = (await ann.messages(conversation))[-1]
        return {step["id_ref"]: step for step in message["steps"] if step["type"] == "tool_result"}


@pytest.mark.parametrize("scope", ["user", "tenant"])
async def test_no_link_gets_around_a_rule_that_denies_a_folder(
    own_server: ServerProcess, workspace: Path, scope: str
) -> None:
    async with AsyncApiClient(own_server.url) as ann:
        paths = ["link.txt", "docs/deep/far.txt", "folder/key.txt", "./folder/../folder/key.txt"]
        outcomes = await results_by_path(ann, *map(read, [*paths, "hard.txt"]))
        assert all(SECRET in step["content"] for step in outcomes.values())
        await set_rules(ann, "deny file_read(secrets/*)", scope=scope)
        outcomes = await results_by_path(ann, *map(read, [*paths, "docs/a.txt", "open.txt", "missing.txt"]))
        for path in paths:
            assert outcomes[path]["outcome"] == "denied", outcomes[path]
            assert SECRET not in outcomes[path]["content"]
        for path in ("docs/a.txt", "open.txt"):
            assert "an open word" in outcomes[path]["content"]
        assert "outcome" not in outcomes["missing.txt"]


async def test_a_hard_linked_file_is_denied_by_a_tenant_rule_and_asked_about_otherwise(
    own_server: ServerProcess, workspace: Path
) -> None:
    async with AsyncApiClient(own_server.url) as ann:
        await set_rules(ann, "deny file_read(secrets/*)")
        async with ScriptedProvider(asks(read("hard.txt"), read("docs/a.txt"))) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation)
            async with ann.follow(run["id"]) as stream:
                await stream.until("question_asked")
            (question,) = await open_questions(ann, run["id"])
            assert question["call_id"] == "hard.txt"
            assert "several hard links" in question["because"]
            await answer(ann, question, "reject")
            await ann.wait_for_end(run["id"])
            assert SECRET not in str(await ann.messages(conversation))
        await set_rules(ann)
        await set_rules(ann, "deny file_read(secrets/*)", scope="tenant")
        outcomes = await results_by_path(ann, read("hard.txt"), read("docs/a.txt"))
        assert outcomes["hard.txt"]["outcome"] == "denied"
        assert "several hard links" in outcomes["hard.txt"]["content"]
        assert "an open word" in outcomes["docs/a.txt"]["content"]


async def test_a_rule_for_a_folder_does_not_allow_the_targets_of_its_links(
    own_server: ServerProcess, workspace: Path
) -> None:
    async with AsyncApiClient(own_server.url) as ann:
        await set_rules(ann, "deny file_write(*)", "allow file_write(docs/*)")
        outcomes = await results_by_path(ann, write("docs/new.txt"), write("docs/escape/new.txt"))
        assert outcomes["docs/new.txt"]["success"] is True
        assert outcomes["docs/escape/new.txt"]["outcome"] == "denied"
        assert not (workspace / "out/new.txt").exists()
        # A direct tool call is never asked about, and a denied one stays denied.
        body = {"arguments": {"path": "docs/escape/new.txt", "content": "x"}}
        executed = await ann.ask("POST", "/tools/file_write/execute", body)
        assert executed.status_code == 403, executed.text
        assert not (workspace / "out/new.txt").exists()


async def asked_about(ann: AsyncApiClient, model: ScriptedProvider) -> Json:
    """The question of a run with this model."""
    run = await ann.start_run(await ann.conversation(model.url))
    async with ann.follow(run["id"]) as stream:
        await stream.until("question_asked")
    (question,) = await open_questions(ann, run["id"])
    return question


async def test_always_is_offered_for_a_link_only_where_its_rule_would_allow_the_target(
    own_server: ServerProcess, workspace: Path
) -> None:
    call = read("open.txt")
    async with AsyncApiClient(own_server.url) as ann, ScriptedProvider(asks(call)) as model:
        await set_rules(ann, "ask file_read(*)", "allow file_read(open.txt)")
        question = await asked_about(ann, model)
        assert [option["label"] for option in question["options"]] == ["once", "reject"]
        assert "usual" not in question
        path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
        refused = await ann.ask("POST", path, {"answer": "always"})
        problem = "no rule of yours can allow this call; answer once or reject"
        assert (refused.status_code, list(refused.json()["detail"]["fields"].values())) == (400, [problem])
        await answer(ann, question, "once")
        await ann.wait_for_end(question["run_id"])
        await set_rules(ann, "ask file_read(open.txt)", "allow file_read(docs/*)")
        question = await asked_about(ann, model)
        assert question["usual"] == "=open.txt"
        await answer(ann, question, "always")
        await ann.wait_for_end(question["run_id"])
        assert (await results_by_path(ann, call))["open.txt"]["success"] is True
