"""The quota covers messages and runs, and deleting conversations frees it."""

import subprocess
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from api.server_process import ServerProcess, model_settings
from process_environment import scripted_models

from luxx.providers.scripted import Counts, Rule, Script, Text

SCRIPT = Script(rules=[Rule(name="any", reply=[Text(text="noted")])])
PASSWORD = "a-new-password-1"
LARGE = "x" * 400_000
SETTINGS = {
    "LUXX_ADMIN_PASSWORD": PASSWORD,
    "LUXX_LIMITS__STORAGE_MB_PER_USER": "2",
    # Such long messages would reach it.
    "LUXX_LIMITS__LEVEL1_TOKENS_PER_DAY": "0",
}


class Client:
    def __init__(self, server: ServerProcess, username: str = "admin") -> None:
        self.http = httpx.Client(base_url=server.url, timeout=60)
        body = {"username": username, "password": PASSWORD}
        route = "/auth/login" if username == "admin" else "/auth/register"
        token = self.http.post(route, json=body).json()["data"]["access_token"]
        self.http.headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def conversation(self) -> str:
        return str(self.http.post("/conversations", json={}).json()["data"]["id"])

    def say(self, conversation: str, content: str = LARGE) -> httpx.Response:
        message = {"conversation_id": conversation, "content": content}
        return self.http.post("/messages", json=message)

    def fill(self, conversation: str) -> int:
        """Sends large messages until one is refused. Returns the number that were accepted."""
        for taken in range(20):
            answer = self.say(conversation)
            if not answer.is_success:
                assert answer.status_code == 413, answer.text
                assert answer.json()["detail"]["kind"] == "quota_exceeded"
                assert "limits.storage_mb_per_user" in answer.json()["error"]
                assert "delete conversations" in answer.json()["error"]
                return taken
        raise AssertionError("8 MB of messages were stored where 2 MiB are allowed")


@pytest.mark.heavy
def test_messages_past_the_limit_are_refused_until_some_are_deleted(tmp_path: Path) -> None:
    with scripted_models(SCRIPT) as model:
        with (
            ServerProcess(tmp_path, **model_settings(model.url), **SETTINGS) as server,
            Client(server) as admin,
            Client(server, "other_user") as other,
        ):
            first, second = admin.conversation(), admin.conversation()
            assert admin.say(first).is_success
            assert 1 <= admin.fill(second) <= 5
            assert admin.say(first, "a short one").is_success
            assert other.say(other.conversation()).is_success
            assert admin.http.delete(f"/conversations/{second}").is_success
            assert admin.say(first).is_success
        # At start-up the server counts what is stored; without a limit it refuses nothing.
        with (
            ServerProcess(tmp_path, **model_settings(model.url), **SETTINGS) as server,
            Client(server) as again,
        ):
            assert again.fill(again.conversation()) <= 4
        unlimited = SETTINGS | {"LUXX_LIMITS__STORAGE_MB_PER_USER": "0"}
        with (
            ServerProcess(tmp_path, **model_settings(model.url), **unlimited) as server,
            Client(server) as admin,
        ):
            assert admin.say(admin.conversation()).is_success


def test_texts_that_are_attached_count_like_the_text_of_a_message(tmp_path: Path) -> None:
    attached = {"name": "notes.txt", "extension": "txt", "content": LARGE}
    with (
        scripted_models(SCRIPT) as model,
        ServerProcess(tmp_path, **model_settings(model.url), **SETTINGS) as server,
        Client(server) as admin,
    ):
        uploaded = admin.http.post("/files", files={"file": ("more.txt", LARGE.encode())}).json()["data"]
        message = {"conversation_id": admin.conversation(), "content": "Keep these"}
        both = [attached, {"file_id": uploaded["id"]}]
        assert admin.http.post("/messages", json={**message, "attachments": both}).is_success
        assert admin.http.post("/messages", json={**message, "attachments": both}).is_success
        refused = admin.http.post("/messages", json={**message, "attachments": both})
        assert (refused.status_code, refused.json()["detail"]["kind"]) == (413, "quota_exceeded")
        assert admin.say(message["conversation_id"], "a short one").is_success


def test_what_people_write_in_a_room_counts_for_its_owner(tmp_path: Path) -> None:
    with (
        scripted_models(SCRIPT) as model,
        ServerProcess(tmp_path, **model_settings(model.url), **SETTINGS) as server,
        Client(server) as admin,
        Client(server, "other_user") as member,
    ):
        room = admin.http.post("/chat-rooms", json={"title": "t", "task": "t"}).json()["data"]["id"]
        invited = {"username": "other_user", "right": "speak"}
        assert admin.http.post(f"/chat-rooms/{room}/members", json=invited).is_success

        def write(client: Client) -> httpx.Response:
            return client.http.post(f"/chat-rooms/{room}/messages", json={"content": LARGE})

        taken = [write(member) for _ in range(6)]
        assert [answer.status_code for answer in taken] == [201] * 5 + [413]
        assert taken[-1].json()["detail"]["kind"] == "quota_exceeded"
        assert "the owner of this room has no storage left" in taken[-1].json()["error"]
        assert "your messages" in write(admin).json()["error"]
        assert admin.say(admin.conversation()).status_code == 413
        assert member.say(member.conversation()).is_success, "the writer has a limit of their own"
        assert admin.http.delete(f"/chat-rooms/{room}").is_success
        assert admin.say(admin.conversation()).is_success


def test_a_room_does_not_go_on_where_nothing_more_may_be_stored(tmp_path: Path) -> None:
    with (
        scripted_models(SCRIPT) as model,
        ServerProcess(tmp_path, **model_settings(model.url), **SETTINGS) as server,
        Client(server) as admin,
    ):
        manual = {"title": "t", "task": "t", "agents": [{"name": "A"}], "policy": "manual"}
        room = admin.http.post("/chat-rooms", json=manual).json()["data"]["id"]
        as_json = {"headers": {"accept": "application/json"}}
        assert admin.http.post(f"/chat-rooms/{room}/start", **as_json).is_success
        assert admin.http.post(f"/chat-rooms/{room}/stop").is_success
        run_id = admin.http.get(f"/chat-rooms/{room}").json()["data"]["run_id"]
        other = admin.http.post("/chat-rooms", json=manual | {"title": "o"}).json()["data"]["id"]
        talk = admin.conversation()
        # The log of the last message that is accepted takes more than is left.
        for size in (400_000, 50_000, 5_000, 10):
            while admin.say(talk, LARGE[:size]).is_success:
                pass
        for path in (f"/chat-rooms/{room}/resume", f"/runs/{run_id}/resume", f"/chat-rooms/{other}/start"):
            refused = admin.http.post(path, **as_json)
            assert (refused.status_code, refused.json()["detail"]["kind"]) == (413, "quota_exceeded")


def test_files_that_tools_write_count_towards_the_quota(tmp_path: Path) -> None:
    settings = SETTINGS | {"LUXX_FILES__QUOTA_MB": "1"}
    with (
        scripted_models(SCRIPT) as model,
        ServerProcess(tmp_path, **model_settings(model.url), **settings) as server,
        Client(server) as admin,
    ):

        def call(tool: str, **arguments: Any) -> Any:
            answer = admin.http.post(f"/tools/{tool}/execute", json={"arguments": arguments})
            assert answer.is_success, answer.text
            return answer.json()["data"]

        assert call("file_write", path="a.txt", content="a" * 700_000)["success"]
        refused = call("file_write", path="b.txt", content="b" * 700_000)
        assert not refused["success"]
        assert "files.quota_mb" in refused["error"]
        assert not call("file_exists", path="b.txt")["data"]["exists"]
        assert call("file_write", path="b.txt", content="small")["success"]
        assert call("shell_execute", command="head -c 2000000 /dev/zero > c.bin")["success"]
        assert (
            "files.quota_mb" in call("file_edit", path="b.txt", old_string="small", new_string="x")["error"]
        )
        assert "files.quota_mb" in call("shell_execute", command="true")["error"]
        file = admin.http.get("/files", params={"path": ""}).json()["data"]["items"]
        largest = next(line for line in file if line["name"] == "c.bin")
        assert admin.http.delete(f"/files/{largest['id']}").is_success
        assert call("shell_execute", command="true")["success"]
        assert call("file_edit", path="b.txt", old_string="small", new_string="x")["success"]


COUNTED = Script(rules=[Rule(name="any", reply=[Text(text="noted"), Counts(prompt=20_000, completion=200)])])


@pytest.mark.heavy
def test_a_self_registered_user_cannot_use_a_shared_provider_without_limit(tmp_path: Path) -> None:
    settings = SETTINGS | {"LUXX_LIMITS__LEVEL1_TOKENS_PER_DAY": "20000"}
    with scripted_models(COUNTED) as model:
        with (
            ServerProcess(tmp_path, **model_settings(model.url), **settings) as server,
            Client(server) as admin,
            Client(server, "a_stranger") as stranger,
        ):
            talk = stranger.conversation()
            assert stranger.say(talk, "hello").is_success
            refused = stranger.say(talk, "again")
            assert refused.status_code == 429, refused.text
            assert "the daily limit of 20000 tokens at shared providers is reached" in refused.json()["error"]
            # An administrator is not bound by it.
            again = admin.conversation()
            assert admin.say(again, "hello").is_success
            assert admin.say(again, "again").is_success
        assert "registration_without_daily_limit" not in server.output
        endless = SETTINGS | {"LUXX_LIMITS__LEVEL1_TOKENS_PER_DAY": "0"}
        with ServerProcess(tmp_path, **model_settings(model.url), **endless) as server:
            assert "registration_without_daily_limit" in server.output
            examined = subprocess.run(
                ["luxx", "doctor"],
                cwd=tmp_path,
                env=server.environ,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert "BAD  registration" in examined.stdout
