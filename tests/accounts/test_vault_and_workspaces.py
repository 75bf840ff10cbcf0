"""The server's secret, values that are sealed with it, and users' directories."""

import hashlib
import multiprocessing
import os
import stat

import pytest

from luxx.domain.accounts.user_data import Workspaces
from luxx.errors import ConfigError, Unavailable
from luxx.infra.secrets import Vault, find_secret, mask

SECRET = "a secret of the tests, long enough"


def test_a_configured_secret_is_used_and_nothing_is_written(tmp_path):
    assert (
        find_secret("a secret of thirty-two letters!!", tmp_path, is_shared=False)
        == "a secret of thirty-two letters!!"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_secret_is_made_once_and_only_the_owner_can_read_it(tmp_path):
    data_dir = tmp_path / "not" / "there"
    secret = find_secret("", data_dir, is_shared=False)
    assert find_secret("", data_dir, is_shared=False) == secret
    assert len(secret) >= 64
    assert stat.S_IMODE((data_dir / "secret_key").stat().st_mode) == 0o600
    assert [each.name for each in data_dir.iterdir()] == ["secret_key"]


def test_a_secret_file_that_others_could_read_is_closed_to_them(tmp_path):
    (tmp_path / "secret_key").write_text("a secret of thirty-two letters!!\n")
    (tmp_path / "secret_key").chmod(0o644)
    assert find_secret("", tmp_path, is_shared=False) == "a secret of thirty-two letters!!"
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600


def _find(folder, gate, answers):
    gate.wait(20)
    answers.put(find_secret("", folder, is_shared=False))


def test_processes_that_start_at_once_get_the_same_secret(tmp_path):
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_find, args=(tmp_path, gate, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    secrets = {answers.get(timeout=30) for _ in processes}
    for process in processes:
        process.join(10)
    answers.close()
    answers.join_thread()
    assert len(secrets) == 1


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe\xff\xfe" * 8])
def test_a_secret_file_that_holds_no_secret_stops_the_start(tmp_path, content):
    (tmp_path / "secret_key").write_bytes(content)
    with pytest.raises(ConfigError, match="secret_key"):
        find_secret("", tmp_path, is_shared=False)


def test_a_short_secret_and_a_shared_database_without_one_stop_the_start(tmp_path):
    with pytest.raises(ConfigError, match="at least 32"):
        find_secret("a secret of thirty-one letters!", tmp_path, is_shared=False)
    with pytest.raises(ConfigError, match="PostgreSQL"):
        find_secret("", tmp_path, is_shared=True)


def test_a_data_directory_that_cannot_be_written_stops_the_start(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be stored"):
        find_secret("", tmp_path / "data", is_shared=False)


@pytest.mark.parametrize("plain", ["", "sk-1234567890", "ключ 🔑", "x" * 100_000])
def test_a_sealed_value_opens_and_is_not_readable(plain):
    vault = Vault(SECRET)
    sealed = vault.seal(plain, identity="llm_providers:7")
    assert vault.open(sealed, identity="llm_providers:7") == plain
    assert vault.seal(plain, identity="llm_providers:7") != sealed
    assert not plain or plain not in sealed


def test_a_sealed_secret_opens_for_its_row_only():
    vault = Vault(SECRET)
    with pytest.raises(Unavailable, match="another row"):
        vault.open(vault.seal("key", identity="llm_providers:7"), identity="llm_providers:8")


def test_another_key_is_named_as_the_reason():
    sealed = Vault("another secret, as long").seal("key", identity="a")
    with pytest.raises(Unavailable, match=r"another app\.secret_key"):
        Vault(SECRET).open(sealed, identity="a")


def test_a_previous_secret_still_opens_what_it_sealed():
    old = Vault("another secret, as long").seal("key", identity="a")
    vault = Vault(SECRET, previous=["another secret, as long"])
    assert vault.open(old, identity="a") == "key"
    assert vault.needs_resealing(old)
    assert not vault.needs_resealing(vault.seal("key", identity="a"))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "words", "short", "not base64", "other version"])
def test_a_damaged_secret_is_refused_with_a_message(damage):
    vault = Vault(SECRET)
    sealed = vault.seal("key", identity="a")
    head, body = sealed.rsplit(".", 1)
    text = {
        "cut": sealed[:-4],
        "flip": f"{head}.{'B' if body[0] == 'A' else 'A'}{body[1:]}",
        "empty": "",
        "words": "sk-plain-key",
        "short": f"{head}.AAAA",
        "not base64": f"{head}.!!!!",
        "other version": sealed.replace("v1.", "v2."),
    }[damage]
    with pytest.raises(Unavailable, match="damaged"):
        vault.open(text, identity="a")


@pytest.mark.parametrize(
    ("plain", "shown"), [("sk-abcdefghwxyz", "****wxyz"), ("short-key", "****"), ("", "****")]
)
def test_a_mask_shows_four_characters_at_most_and_none_of_a_short_one(plain, shown):
    assert mask(plain) == shown


def test_a_workspace_is_named_by_the_hash_of_the_users_id_and_private(tmp_path):
    path = Workspaces(str(tmp_path / "root")).prepare(7)
    assert path == tmp_path / "root" / hashlib.sha256(b"7").hexdigest()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_relative_root_gives_a_relative_path():
    assert str(Workspaces("./workspaces").path_of(7)).startswith("workspaces/")


def test_without_auto_create_a_missing_workspace_is_refused(tmp_path):
    workspaces = Workspaces(str(tmp_path), auto_create=False)
    with pytest.raises(Unavailable, match="auto_create"):
        workspaces.prepare(7)
    assert workspaces.prepare_if_enabled(7) == workspaces.path_of(7)


def test_a_link_instead_of_a_workspace_is_refused(tmp_path):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    workspaces = Workspaces(str(root))
    workspaces.path_of(7).symlink_to(elsewhere)
    with pytest.raises(Unavailable, match="a link is not allowed"):
        workspaces.prepare(7)


def test_a_workspace_is_deleted_however_deep_it_is_and_whatever_its_modes(tmp_path):
    workspaces = Workspaces(str(tmp_path))
    outside = tmp_path / "outside.txt"
    outside.write_text("stays")
    before = os.getcwd()
    os.chdir(workspaces.prepare(7))
    try:
        os.symlink(outside, "link")
        os.makedirs("locked/within")
        os.chmod("locked", 0)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    workspaces.remove(7)
    assert os.listdir(tmp_path) == ["outside.txt"]
    assert outside.read_text() == "stays"


async def test_a_new_user_gets_their_workspace_and_a_failed_one_makes_no_user(account_server, tmp_path):
    user = (await account_server.join("ada"))["user"]
    assert user["workspace_path"] == str(account_server.workspaces.path_of(user["id"]))
    assert account_server.workspaces.path_of(user["id"]).is_dir()
    account_server.workspaces.path_of(user["id"] + 1).write_text("in the way")
    answer = await account_server.ask(
        "POST", "/auth/register", {"username": "eve", "password": "correct horse"}
    )
    assert answer.status_code == 503
    assert [each.username for each in await account_server.operator.all_users()] == ["ada"]
