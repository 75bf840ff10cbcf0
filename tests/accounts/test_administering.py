"""Levels, disabling, the last administrator, tenants; and the user's own settings."""

import asyncio

import pytest

from luxx.accounts.service import Because


def test_a_list_of_users_is_for_administrators_and_comes_in_pages(house, run):
    async def scenario():
        admin = await house.join("boss", level=4)
        for name in ("ada", "bob", "cyd"):
            await house.join(name)
        worker = await house.join("dan", level=3)
        refused = await house.ask("GET", "/auth/users", token=worker["access_token"])
        assert refused.status_code == 403
        page = (await house.ask("GET", "/auth/users?page=2&page_size=2", token=admin["access_token"])).json()
        assert [each["username"] for each in page["data"].pop("items")] == ["bob", "ada"]
        assert page["data"] == {"total": 5, "page": 2, "page_size": 2}
        past = await house.ask("GET", "/auth/users?page=1000000&page_size=100", token=admin["access_token"])
        assert past.json()["data"]["items"] == []

    run(scenario())


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
def test_a_bad_page_is_refused_with_400(house, run, query):
    async def scenario():
        admin = await house.join("boss", level=4)
        answer = await house.ask("GET", f"/auth/users?{query}", token=admin["access_token"])
        assert answer.status_code == 400

    run(scenario())


def test_a_level_takes_effect_at_the_next_request_and_the_role_follows(house, run):
    async def scenario():
        admin, user = await house.join("boss", level=4), await house.join("ada")
        told = []
        house.accounts.subscribe(told.append)
        path = f"/auth/users/{user['user']['id']}"
        raised = await house.ask("PUT", path, {"permission_level": 4}, token=admin["access_token"])
        assert raised.json()["data"]["role"] == "admin"
        assert (await house.ask("GET", "/auth/users", token=user["access_token"])).status_code == 200
        lowered = await house.ask("PUT", path, {"permission_level": 2}, token=admin["access_token"])
        assert lowered.json()["data"]["role"] == "user"
        assert (await house.ask("GET", "/auth/users", token=user["access_token"])).status_code == 403
        assert [each.because for each in told] == [Because.DEMOTED]

    run(scenario())


def test_a_disabled_user_is_out_at_once_and_old_tokens_stay_dead_when_enabled_again(house, run):
    async def scenario():
        admin, user = await house.join("boss", level=4), await house.join("ada")
        path = f"/auth/users/{user['user']['id']}"
        token = admin["access_token"]
        assert (await house.ask("PUT", path, {"is_active": False}, token=token)).status_code == 200
        assert (await house.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
        body = {"refresh_token": user["refresh_token"]}
        assert (await house.ask("POST", "/auth/refresh", body)).status_code == 401
        await house.ask("PUT", path, {"is_active": True}, token=token)
        assert (await house.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
        assert await house.enter("ada")

    run(scenario())


@pytest.mark.parametrize("body", [{"permission_level": 3}, {"is_active": False}])
def test_the_last_active_administrator_stays(house, run, body):
    async def scenario():
        first, second = await house.join("one", level=4), await house.join("two", level=4)
        token = first["access_token"]
        gone = await house.ask("PUT", f"/auth/users/{second['user']['id']}", body, token=token)
        assert gone.status_code == 200
        last = await house.ask("PUT", f"/auth/users/{first['user']['id']}", body, token=token)
        assert (last.status_code, last.json()["detail"]["kind"]) == (409, "last_admin")
        me = (await house.ask("GET", "/auth/me", token=token)).json()["data"]
        assert (me["permission_level"], me["role"], me["is_active"]) == (4, "admin", True)

    run(scenario())


def test_two_administrators_who_demote_each_other_at_once_leave_one(house, run):
    async def scenario():
        one, two = await house.join("one", level=4), await house.join("two", level=4)
        pairs = [(one, two), (two, one)]
        await asyncio.gather(
            *(
                house.ask(
                    "PUT",
                    f"/auth/users/{target['user']['id']}",
                    {"permission_level": 1},
                    token=actor["access_token"],
                )
                for actor, target in pairs
            )
        )
        levels = sorted(int(each.permission_level) for each in await house.operator.all_users())
        assert levels == [1, 4]

    run(scenario())


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
def test_a_bad_change_of_a_user_is_refused_with_400(house, run, body):
    async def scenario():
        admin = await house.join("boss", level=4)
        path = f"/auth/users/{admin['user']['id']}"
        assert (await house.ask("PUT", path, body, token=admin["access_token"])).status_code == 400

    run(scenario())


def test_an_empty_change_changes_nothing(house, run):
    async def scenario():
        admin = await house.join("boss", level=4)
        path = f"/auth/users/{admin['user']['id']}"
        answer = await house.ask("PUT", path, {}, token=admin["access_token"])
        assert answer.json()["data"] == admin["user"]

    run(scenario())


@pytest.mark.parametrize("user_id", ["0", "-1", "999", str(2**31), str(2**70), "x", "1.5", "%00"])
def test_a_user_that_is_not_there_is_404(house, run, user_id):
    async def scenario():
        admin = await house.join("boss", level=4)
        answer = await house.ask("PUT", f"/auth/users/{user_id}", {}, token=admin["access_token"])
        assert answer.status_code == 404

    run(scenario())


def test_an_administrator_neither_sees_nor_changes_users_of_another_tenant(house, run):
    async def scenario():
        admin, stranger = await house.join("boss", level=4), await house.join("far")
        with house.store.engine.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO tenants (name, is_default, created_at) "
                "VALUES ('elsewhere', 0, '2026-01-01 00:00:00')"
            )
            connection.exec_driver_sql(
                "UPDATE users SET tenant_id = (SELECT id FROM tenants WHERE name = 'elsewhere') "
                "WHERE username = 'far'"
            )
        page = (await house.ask("GET", "/auth/users", token=admin["access_token"])).json()["data"]
        assert [each["username"] for each in page["items"]] == ["boss"]
        path = f"/auth/users/{stranger['user']['id']}"
        theirs = await house.ask("PUT", path, {"is_active": False}, token=admin["access_token"])
        missing = await house.ask("PUT", "/auth/users/999", {"is_active": False}, token=admin["access_token"])
        assert theirs.status_code == missing.status_code == 404
        assert theirs.json()["error"].replace(path.rsplit("/", 1)[1], "999") == missing.json()["error"]

    run(scenario())


def test_settings_keep_what_is_left_out_and_clear_what_is_null(house, run):
    async def scenario():
        token = (await house.join("ada"))["access_token"]
        first = (await house.ask("GET", "/settings", token=token)).json()["data"]
        names = ("default_provider_id", "temperature", "max_tokens", "thinking_enabled", "system_prompt")
        assert [first[name] for name in names] == [None] * 5
        body = {"temperature": 2, "max_tokens": 1, "thinking_enabled": True, "system_prompt": "Be\nkind."}
        await house.ask("PUT", "/settings", body, token=token)
        await house.ask("PUT", "/settings", {"temperature": None, "thinking_enabled": False}, token=token)
        now = (await house.ask("GET", "/settings", token=token)).json()["data"]
        assert [now[name] for name in names] == [None, None, 1, False, "Be\nkind."]
        assert now["updated_at"] > first["updated_at"]

    run(scenario())


def test_a_default_provider_must_be_usable_by_the_user(house, run):
    async def scenario():
        user = await house.join("ada")
        token = user["access_token"]
        with house.store.engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        answer = await house.ask("PUT", "/settings", {"default_provider_id": 8}, token=token)
        assert answer.status_code == 404
        gone = await house.ask("PUT", "/settings", {"default_provider_id": 7}, token=token)
        assert gone.status_code == 400, "usable when checked, deleted when saved"
        cleared = await house.ask("PUT", "/settings", {"default_provider_id": None}, token=token)
        assert cleared.status_code == 200

    run(scenario())


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
def test_bad_settings_are_refused_with_400(house, run, body):
    async def scenario():
        token = (await house.join("ada"))["access_token"]
        assert (await house.ask("PUT", "/settings", body, token=token)).status_code == 400

    run(scenario())


def test_settings_are_the_own_ones_only(house, run):
    async def scenario():
        ada, eve = await house.join("ada"), await house.join("eve")
        await house.ask("PUT", "/settings", {"system_prompt": "mine"}, token=ada["access_token"])
        theirs = (await house.ask("GET", "/settings", token=eve["access_token"])).json()["data"]
        assert (theirs["user_id"], theirs["system_prompt"]) == (eve["user"]["id"], None)

    run(scenario())
