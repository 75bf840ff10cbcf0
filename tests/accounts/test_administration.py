"""Levels, disabling, the last administrator, tenants; and the user's own settings."""

import asyncio

import pytest

from luxx.domain.accounts.administration import NewAccount
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import RevocationReason
from luxx.errors import NotAllowed
from luxx.wire.tool import CommandPermission


async def test_a_list_of_users_is_for_administrators_and_comes_in_pages(account_server):
    admin = await account_server.join("boss", level=4)
    for name in ("ada", "bob", "cyd"):
        await account_server.join(name)
    worker = await account_server.join("dan", level=3)
    refused = await account_server.ask("GET", "/auth/users", token=worker["access_token"])
    assert refused.status_code == 403
    page = (
        await account_server.ask("GET", "/auth/users?page=2&page_size=2", token=admin["access_token"])
    ).json()
    assert [each["username"] for each in page["data"].pop("items")] == ["bob", "ada"]
    assert page["data"] == {"total": 5, "page": 2, "page_size": 2}
    past = await account_server.ask(
        "GET", "/auth/users?page=1000000&page_size=100", token=admin["access_token"]
    )
    assert past.json()["data"]["items"] == []


BAD_PAGES = [
    "page=0",
    "page=-1",
    "page=x",
    "page_size=0",
    "page_size=101",
    f"page={10**30}",
    "page=1.5",
    "page=",
]


@pytest.mark.parametrize("query", BAD_PAGES)
async def test_a_bad_page_is_refused_with_400(account_server, query):
    admin = await account_server.join("boss", level=4)
    answer = await account_server.ask("GET", f"/auth/users?{query}", token=admin["access_token"])
    assert answer.status_code == 400


async def test_a_level_takes_effect_at_the_next_request_and_the_role_follows(account_server):
    admin, user = await account_server.join("boss", level=4), await account_server.join("ada")
    account_changes = []
    account_server.authenticator.subscribe(account_changes.append)
    path = f"/auth/users/{user['user']['id']}"
    raised = await account_server.ask("PUT", path, {"permission_level": 4}, token=admin["access_token"])
    assert raised.json()["data"]["role"] == "admin"
    assert (await account_server.ask("GET", "/auth/users", token=user["access_token"])).status_code == 200
    lowered = await account_server.ask("PUT", path, {"permission_level": 2}, token=admin["access_token"])
    assert lowered.json()["data"]["role"] == "user"
    assert (await account_server.ask("GET", "/auth/users", token=user["access_token"])).status_code == 403
    assert [each.because for each in account_changes] == [RevocationReason.DEMOTED]


async def test_a_disabled_user_is_out_at_once_and_old_tokens_stay_dead_when_enabled_again(account_server):
    admin, user = await account_server.join("boss", level=4), await account_server.join("ada")
    path = f"/auth/users/{user['user']['id']}"
    token = admin["access_token"]
    assert (await account_server.ask("PUT", path, {"is_active": False}, token=token)).status_code == 200
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
    body = {"refresh_token": user["refresh_token"]}
    assert (await account_server.ask("POST", "/auth/refresh", body)).status_code == 401
    await account_server.ask("PUT", path, {"is_active": True}, token=token)
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
    assert await account_server.enter("ada")


@pytest.mark.parametrize("body", [{"permission_level": 3}, {"is_active": False}, None], ids=str)
async def test_the_last_active_administrator_stays(account_server, body):
    first, second = await account_server.join("one", level=4), await account_server.join("two", level=4)
    token = first["access_token"]
    method = "PUT" if body else "DELETE"
    response = await account_server.ask(method, f"/auth/users/{second['user']['id']}", body, token=token)
    assert response.status_code == 200
    last = await account_server.ask(method, f"/auth/users/{first['user']['id']}", body, token=token)
    assert (last.status_code, last.json()["detail"]["kind"]) == (409, "last_admin")
    me = (await account_server.ask("GET", "/auth/me", token=token)).json()["data"]
    assert (me["permission_level"], me["role"], me["is_active"]) == (4, "admin", True)


async def test_a_demotion_during_the_hashing_of_a_password_stops_the_request(account_server):
    victim, lost = await account_server.join("victim"), await account_server.join("lost", level=4)
    began = Caller(
        user_id=lost["user"]["id"],
        tenant_id=lost["user"]["tenant_id"],
        username="lost",
        permission_level=CommandPermission.ADMIN,
        sign_in_id="s",
    )
    boss = await account_server.join("boss", level=4)
    path = f"/auth/users/{began.user_id}"
    await account_server.ask("PUT", path, {"permission_level": 1}, token=boss["access_token"])
    new = NewAccount(username="backdoor", password="correct horse", permission_level=CommandPermission.ADMIN)
    with pytest.raises(NotAllowed):
        await account_server.administration.create_user(began, new)
    with pytest.raises(NotAllowed):
        await account_server.administration.reset_password(began, victim["user"]["id"], "another horse")
    await account_server.enter("victim", "correct horse")
    assert "backdoor" not in {each.username for each in await account_server.operator.all_users()}


async def test_two_administrators_who_demote_each_other_at_once_leave_one(account_server):
    first_user, second_user = (
        await account_server.join("one", level=4),
        await account_server.join("two", level=4),
    )
    pairs = [(first_user, second_user), (second_user, first_user)]
    await asyncio.gather(
        *(
            account_server.ask(
                "PUT",
                f"/auth/users/{target['user']['id']}",
                {"permission_level": 1},
                token=actor["access_token"],
            )
            for actor, target in pairs
        )
    )
    levels = sorted(int(each.permission_level) for each in await account_server.operator.all_users())
    assert levels == [1, 4]


@pytest.mark.parametrize(
    "body",
    [
        [],
        None,
        {"permission_level": 0},
        {"permission_level": 5},
        {"permission_level": 2.5},
        {"permission_level": True},
        {"permission_level": None},
        {"is_active": None},
        {"role": "admin"},
        {"password": "battery staple"},
    ],
    ids=str,
)
async def test_a_bad_change_of_a_user_is_refused_with_400(account_server, body):
    admin = await account_server.join("boss", level=4)
    path = f"/auth/users/{admin['user']['id']}"
    assert (await account_server.ask("PUT", path, body, token=admin["access_token"])).status_code == 400


async def test_an_empty_change_changes_nothing(account_server):
    admin = await account_server.join("boss", level=4)
    path = f"/auth/users/{admin['user']['id']}"
    answer = await account_server.ask("PUT", path, {}, token=admin["access_token"])
    assert answer.json()["data"] == admin["user"]


@pytest.mark.parametrize("user_id", ["0", "-1", "999", str(2**31), str(2**70), "x", "1.5", "%00"])
async def test_an_unknown_user_is_404(account_server, user_id):
    admin = await account_server.join("boss", level=4)
    answer = await account_server.ask("PUT", f"/auth/users/{user_id}", {}, token=admin["access_token"])
    assert answer.status_code == 404


async def create_tenant(account_server, name):
    """A second tenant with an administrator and a member, both signed in."""
    with account_server.store.engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO tenants (name, is_default, created_at) VALUES ('{name}', 0, '2026-01-01 00:00:00')"
        )
    return await account_server.join(f"{name}-boss", level=4, tenant=name), await account_server.join(
        f"{name}-far", tenant=name
    )


async def test_an_administrator_of_another_tenant_neither_sees_nor_changes_others_and_an_operator_does(
    account_server,
):
    operator, near = await account_server.join("boss", level=4), await account_server.join("near")
    chief, far = await create_tenant(account_server, "elsewhere")
    token = chief["access_token"]
    page = (await account_server.ask("GET", "/auth/users", token=token)).json()["data"]
    assert [each["username"] for each in page["items"]] == ["elsewhere-far", "elsewhere-boss"]
    path = f"/auth/users/{near['user']['id']}"
    for method, more, body in (
        ("GET", "", None),
        ("PUT", "", {"is_active": False}),
        ("POST", "/password", {"new_password": "battery staple"}),
        ("DELETE", "", None),
    ):
        theirs = await account_server.ask(method, path + more, body, token=token)
        missing = await account_server.ask(method, f"/auth/users/999{more}", body, token=token)
        assert theirs.status_code == missing.status_code == 404
        assert theirs.json()["error"].replace(path.rsplit("/", 1)[1], "999") == missing.json()["error"]
        own = await account_server.ask(method, f"/auth/users/{far['user']['id']}{more}", body, token=token)
        assert own.status_code == 200, own.text
    everybody = await account_server.ask("GET", "/auth/users", token=operator["access_token"])
    assert [each["username"] for each in everybody.json()["data"]["items"]] == [
        "elsewhere-boss",
        "near",
        "boss",
    ]
    assert (await account_server.ask("GET", path, token=operator["access_token"])).status_code == 200
    there = f"/auth/users/{chief['user']['id']}"
    lowered = await account_server.ask("PUT", there, {"permission_level": 1}, token=operator["access_token"])
    assert lowered.status_code == 200, "an operator may leave another tenant without an administrator"


async def test_another_tenant_is_named_by_operators_only(account_server):
    operator = await account_server.join("boss", level=4)
    chief, far = await create_tenant(account_server, "elsewhere")
    own_tenant, other_tenant = operator["user"]["tenant_id"], chief["user"]["tenant_id"]
    new = {"username": "newcomer", "password": "correct horse"}
    for method, path, body in (
        ("GET", f"/auth/users?tenant_id={own_tenant}", None),
        ("POST", "/auth/users", new | {"tenant_id": own_tenant}),
        ("PUT", f"/auth/users/{far['user']['id']}", {"tenant_id": own_tenant}),
    ):
        refused = await account_server.ask(method, path, body, token=chief["access_token"])
        assert (refused.status_code, refused.json()["detail"]["kind"]) == (404, "tenant_not_found")
    created_user = await account_server.ask("POST", "/auth/users", new, token=chief["access_token"])
    assert (created_user.status_code, created_user.json()["data"]["tenant_id"]) == (201, other_tenant)
    other = new | {"username": "other", "tenant_id": other_tenant}
    created_user = await account_server.ask("POST", "/auth/users", other, token=operator["access_token"])
    assert (created_user.status_code, created_user.json()["data"]["tenant_id"]) == (201, other_tenant)
    missing = new | {"username": "third", "tenant_id": 999}
    refused = await account_server.ask("POST", "/auth/users", missing, token=operator["access_token"])
    assert refused.status_code == 404
    only = await account_server.ask(
        "GET", f"/auth/users?tenant_id={own_tenant}", token=operator["access_token"]
    )
    assert [each["username"] for each in only.json()["data"]["items"]] == ["boss"]


async def test_a_moved_user_is_signed_out_and_stopped_and_belongs_to_the_other_tenant(account_server):
    operator, user = await account_server.join("boss", level=4), await account_server.join("ada")
    chief, _ = await create_tenant(account_server, "elsewhere")
    account_changes = []
    account_server.authenticator.subscribe(account_changes.append)
    away = chief["user"]["tenant_id"]
    path = f"/auth/users/{user['user']['id']}"
    moved = await account_server.ask("PUT", path, {"tenant_id": away}, token=operator["access_token"])
    assert moved.json()["data"]["tenant_id"] == away
    assert [each.because for each in account_changes] == [RevocationReason.MOVED]
    assert account_server.stopped == [user["user"]["id"]]
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
    assert (await account_server.enter("ada"))["user"]["tenant_id"] == away
    mine = f"/auth/users/{operator['user']['id']}"
    last = await account_server.ask("PUT", mine, {"tenant_id": away}, token=operator["access_token"])
    assert (last.status_code, last.json()["detail"]["kind"]) == (409, "last_admin")


async def test_an_operator_is_an_administrator_of_the_default_tenant_alone(account_server):
    await account_server.join("boss", level=4)
    chief, _ = await create_tenant(account_server, "elsewhere")
    last = await account_server.ask(
        "DELETE", f"/auth/users/{chief['user']['id']}", token=chief["access_token"]
    )
    assert (last.status_code, last.json()["detail"]["kind"]) == (409, "last_admin")


async def test_users_are_found_by_a_part_of_their_name_or_address(account_server):
    admin = await account_server.join("boss", level=4)
    for name, email in (("Ada_1", "ada@x.org"), ("bob", "BOB@ada.org"), ("cyd", None)):
        await account_server.operator.add_user(
            name, "correct horse", level=CommandPermission.READ_ONLY, email=email
        )
    for q, names in (("ADA", ["bob", "Ada_1"]), ("_", ["Ada_1"]), ("%25", []), ("b", ["bob", "boss"])):
        page = await account_server.ask("GET", f"/auth/users?q={q}", token=admin["access_token"])
        assert [each["username"] for each in page.json()["data"]["items"]] == names
        assert page.json()["data"]["total"] == len(names)


async def test_an_address_is_set_cleared_and_no_two_have_the_same(account_server):
    admin, user = await account_server.join("boss", level=4), await account_server.join("ada")
    token, path = admin["access_token"], f"/auth/users/{user['user']['id']}"
    email = {"email": "Ada@Example.org"}
    assert (await account_server.ask("PUT", path, email, token=token)).json()["data"][
        "email"
    ] == "ada@example.org"
    same = {"email": "ADA@example.ORG"}
    assert (await account_server.ask("PUT", path, same, token=token)).status_code == 200
    mine = f"/auth/users/{admin['user']['id']}"
    taken = await account_server.ask("PUT", mine, same, token=token)
    assert (taken.status_code, taken.json()["detail"]["kind"]) == (409, "email_taken")
    cleared = await account_server.ask("PUT", path, {"email": None}, token=token)
    assert cleared.json()["data"]["email"] is None
    assert (await account_server.ask("PUT", path, {"email": "none"}, token=token)).status_code == 400


async def test_a_reset_password_allows_only_to_choose_another(account_server):
    admin, user = await account_server.join("boss", level=4), await account_server.join("ada")
    account_changes = []
    account_server.authenticator.subscribe(account_changes.append)
    path = f"/auth/users/{user['user']['id']}/password"
    reset = {"new_password": "battery staple"}
    answer = await account_server.ask("POST", path, reset, token=admin["access_token"])
    assert answer.json()["data"]["must_change_password"] is True
    assert [each.because for each in account_changes] == [RevocationReason.PASSWORD_RESET]
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
    body = {"username": "ada", "password": "battery staple"}
    entered = await account_server.ask("POST", "/auth/login", body, address="203.0.113.9")
    assert entered.status_code == 200, "it is no published default: any peer may use it"
    token = entered.json()["data"]["access_token"]
    assert (await account_server.ask("GET", "/auth/me", token=token)).json()["data"]["must_change_password"]
    refused = await account_server.ask("GET", "/settings", token=token)
    assert (refused.status_code, refused.json()["detail"]["kind"]) == (403, "password_change_needed")
    chosen = {"current_password": "battery staple", "new_password": "my own choice"}
    assert (await account_server.ask("POST", "/auth/password", chosen, token=token)).status_code == 200
    assert (await account_server.ask("GET", "/settings", token=token)).status_code == 200


async def test_the_own_password_is_changed_and_not_reset(account_server):
    admin = await account_server.join("boss", level=4)
    path = f"/auth/users/{admin['user']['id']}/password"
    answer = await account_server.ask("POST", path, {"new_password": "battery"}, token=admin["access_token"])
    assert answer.status_code == 400
    body = {"new_password": "battery staple"}
    answer = await account_server.ask("POST", path, body, token=admin["access_token"])
    assert (answer.status_code, answer.json()["detail"]["kind"]) == (409, "own_account")


async def test_a_deleted_user_is_gone_with_their_files_and_the_name_is_free(account_server):
    admin, user = await account_server.join("boss", level=4), await account_server.join("ada")
    account_changes = []
    account_server.authenticator.subscribe(account_changes.append)
    folder = account_server.workspaces.path_of(user["user"]["id"])
    (folder / "deep").mkdir()
    (folder / "deep" / "note.txt").write_text("mine")
    path = f"/auth/users/{user['user']['id']}"
    assert (await account_server.ask("DELETE", path, token=admin["access_token"])).status_code == 200
    assert {each.because for each in account_changes} == {RevocationReason.DISABLED, RevocationReason.DELETED}
    assert user["user"]["id"] in account_server.stopped
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
    assert (await account_server.ask("DELETE", path, token=admin["access_token"])).status_code == 404
    assert not folder.exists()
    assert [each.name for each in folder.parent.iterdir()] == [
        account_server.workspaces.path_of(admin["user"]["id"]).name
    ]
    again = await account_server.join("ada")
    assert again["user"]["id"] > user["user"]["id"]


async def test_a_workspace_that_is_a_link_loses_the_link_and_not_what_it_points_to(account_server, tmp_path):
    admin, user = await account_server.join("boss", level=4), await account_server.join("ada")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "note.txt").write_text("not theirs")
    folder = account_server.workspaces.path_of(user["user"]["id"])
    folder.rmdir()
    folder.symlink_to(elsewhere)
    path = f"/auth/users/{user['user']['id']}"
    assert (await account_server.ask("DELETE", path, token=admin["access_token"])).status_code == 200
    assert not folder.exists()
    assert (elsewhere / "note.txt").read_text() == "not theirs"


async def test_settings_keep_what_is_left_out_and_clear_what_is_null(account_server):
    token = (await account_server.join("ada"))["access_token"]
    first = (await account_server.ask("GET", "/settings", token=token)).json()["data"]
    names = ("default_provider_id", "temperature", "max_tokens", "thinking_enabled", "system_prompt")
    assert [first[name] for name in names] == [None] * 5
    body = {"temperature": 2, "max_tokens": 1, "thinking_enabled": True, "system_prompt": "Be\nkind."}
    await account_server.ask("PUT", "/settings", body, token=token)
    await account_server.ask(
        "PUT", "/settings", {"temperature": None, "thinking_enabled": False}, token=token
    )
    now = (await account_server.ask("GET", "/settings", token=token)).json()["data"]
    assert [now[name] for name in names] == [None, None, 1, False, "Be\nkind."]
    assert now["updated_at"] > first["updated_at"]


async def test_a_default_provider_must_be_usable_by_the_user(account_server):
    user = await account_server.join("ada")
    token = user["access_token"]
    with account_server.store.engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
    answer = await account_server.ask("PUT", "/settings", {"default_provider_id": 8}, token=token)
    assert answer.status_code == 404
    response = await account_server.ask("PUT", "/settings", {"default_provider_id": 7}, token=token)
    assert response.status_code == 400, "usable when checked, deleted when saved"
    cleared = await account_server.ask("PUT", "/settings", {"default_provider_id": None}, token=token)
    assert cleared.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": True},
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        {"temperature": "nan"},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_tokens": 2**31},
        {"max_tokens": 10**30},
        {"thinking_enabled": "yes"},
        {"system_prompt": 7},
        {"system_prompt": "a\u0000b"},
        {"system_prompt": "x" * 100_001},
        {"default_provider_id": 0},
        {"default_provider_id": -1},
        {"default_provider_id": 2**63},
        {"default_provider_id": "7"},
        {"user_id": 2},
        {"id": 2},
    ],
    ids=lambda body: str(body)[:40],
)
async def test_bad_settings_are_refused_with_400(account_server, body):
    token = (await account_server.join("ada"))["access_token"]
    assert (await account_server.ask("PUT", "/settings", body, token=token)).status_code == 400


async def test_settings_are_those_of_the_caller_only(account_server):
    ada, eve = await account_server.join("ada"), await account_server.join("eve")
    await account_server.ask("PUT", "/settings", {"system_prompt": "mine"}, token=ada["access_token"])
    theirs = (await account_server.ask("GET", "/settings", token=eve["access_token"])).json()["data"]
    assert (theirs["user_id"], theirs["system_prompt"]) == (eve["user"]["id"], None)
