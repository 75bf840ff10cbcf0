"""Registration, sign-in and sign-out, passwords, and what clients without a sign-in can find out."""

import asyncio

import bcrypt
import pytest

from luxx.domain.accounts.service import AccountChange, RevocationReason

LOGIN = "/auth/login"


async def test_a_registered_user_is_signed_in_and_sees_the_fields_of_the_er_diagram(account_server):
    body = {"username": "Ada.L", "password": "correct horse", "email": "Ada@Example.org"}
    answer = await account_server.ask("POST", "/auth/register", body)
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert data["token_type"] == "bearer"
    assert data["expires_in"] == 1800
    me = (await account_server.ask("GET", "/auth/me", token=data["access_token"])).json()
    assert me["success"] is True
    assert me["data"] == data["user"]
    assert me["data"]["username"] == "Ada.L"
    assert me["data"]["email"] == "ada@example.org"
    assert (me["data"]["role"], me["data"]["permission_level"]) == ("user", 1)
    assert me["data"]["created_at"].endswith("Z")
    assert "password" not in answer.text.replace("must_change_password", "")


async def test_closed_registration_is_refused_and_the_default_level_is_respected(build_server):
    body = {"username": "ada", "password": "correct horse"}
    closed = build_server(auth={"allow_registration": False})
    answer = await closed.ask("POST", "/auth/register", body)
    assert answer.status_code == 403
    assert answer.json()["detail"]["kind"] == "registration_closed"
    generous = build_server(auth={"default_permission_level": 3})
    answer = await generous.ask("POST", "/auth/register", body)
    assert answer.json()["data"]["user"]["permission_level"] == 3


async def test_a_username_is_the_same_in_any_case(account_server):
    await account_server.join("Grace")
    taken = await account_server.ask(
        "POST", "/auth/register", {"username": "gRACE", "password": "correct horse"}
    )
    assert taken.status_code == 409
    assert (await account_server.enter("GRACE"))["user"]["username"] == "Grace"


async def test_an_email_belongs_to_one_user_in_any_case(account_server):
    body = {"username": "ada", "password": "correct horse", "email": "a@b.c"}
    assert (await account_server.ask("POST", "/auth/register", body)).status_code == 200
    other = body | {"username": "eve", "email": "A@B.C"}
    answer = await account_server.ask("POST", "/auth/register", other)
    assert (answer.status_code, answer.json()["detail"]["kind"]) == (409, "email_taken")


async def test_of_ten_concurrent_registrations_of_a_name_one_succeeds(account_server):
    names = ["Neo" if i % 2 else "neo" for i in range(10)]
    answers = await asyncio.gather(
        *(
            account_server.ask("POST", "/auth/register", {"username": n, "password": "correct horse"})
            for n in names
        )
    )
    assert sorted(each.status_code for each in answers) == [200] + [409] * 9
    assert len(await account_server.operator.all_users()) == 1


GOOD = {"username": "mallory", "password": "correct horse"}
BAD_REGISTRATIONS = [
    {},
    [],
    "text",
    None,
    {"username": "mallory"},
    {"password": "correct horse"},
    GOOD | {"username": ""},
    GOOD | {"username": "ab"},
    GOOD | {"username": "a" * 65},
    GOOD | {"username": "mal lory"},
    GOOD | {"username": "mallory\n"},
    GOOD | {"username": "\nmallory"},
    GOOD | {"username": "mall\u0000ory"},
    GOOD | {"password": "a\u0000bcdefgh"},
    GOOD | {"username": "mаllory"},
    GOOD | {"username": "ma\u202ellory"},
    GOOD | {"username": "mallory\u200b"},
    GOOD | {"username": "ＭＡＬＬＯＲＹ"},
    GOOD | {"username": "../mallory"},
    GOOD | {"username": "mallory'; DROP TABLE users;--"},
    GOOD | {"username": "<b>mallory"},
    GOOD | {"username": 7},
    GOOD | {"username": None},
    GOOD | {"username": ["mallory"]},
    GOOD | {"password": ""},
    GOOD | {"password": "short12"},
    GOOD | {"password": "x" * 1025},
    GOOD | {"password": 12345678},
    GOOD | {"password": None},
    GOOD | {"password": "Mallory"},
    GOOD | {"password": "admin123"},
    GOOD | {"username": "mallory1", "password": "MALLORY1"},
    GOOD | {"email": ""},
    GOOD | {"email": "mallory"},
    GOOD | {"email": "@example.org"},
    GOOD | {"email": "a@"},
    GOOD | {"email": "a b@example.org"},
    GOOD | {"email": "a@b@c"},
    GOOD | {"email": "a@b.c\n"},
    GOOD | {"email": "a@b.c\r\nBcc: x@y.z"},
    GOOD | {"email": "a@" + "b" * 300},
    GOOD | {"email": 7},
    GOOD | {"role": "admin"},
    GOOD | {"permission_level": 4},
    GOOD | {"is_active": True},
    GOOD | {"tenant_id": 1},
    b"",
    b"{",
    b"\xff\xfe",
    b'{"username": "mallory", "password": "\\ud800\\ud800\\ud800\\ud800\\ud800\\ud800\\ud800\\ud800"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", BAD_REGISTRATIONS, ids=range(len(BAD_REGISTRATIONS)))
async def test_a_bad_registration_is_refused_with_400_and_makes_nobody(account_server, body):
    answer = await account_server.ask("POST", "/auth/register", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["success"] is False
    assert all(path.startswith("$") for path in answer.json()["detail"].get("fields", ["$"]))
    assert await account_server.operator.all_users() == []


@pytest.mark.parametrize("password", ["пароль-пароль", "🐎🔋📎🐎🔋📎🐎🔋", "x" * 1024, " " * 8])
async def test_any_password_of_eight_to_1024_characters_works_and_counts_whole(account_server, password):
    await account_server.join("ada", password=password)
    wrong = {"username": "ada", "password": password[:-1] + "!"}
    assert (await account_server.ask("POST", LOGIN, wrong)).status_code == 401


async def test_a_composed_and_a_decomposed_letter_are_the_same_password(account_server):
    await account_server.join("ada", password="caf\u00e9 caf\u00e9")
    assert await account_server.enter("ada", "cafe\u0301 cafe\u0301")


ODD_NAMES = ["nobody", "", "a", "x" * 200, "адмін", "a' OR 1=1 --", "ada ", " ada", "ada\n"]


@pytest.mark.parametrize("username", ODD_NAMES, ids=range(len(ODD_NAMES)))
async def test_an_unknown_name_and_a_wrong_password_get_the_same_answer_and_the_same_work(
    account_server, monkeypatch, username
):
    checked: list[bytes] = []
    real = bcrypt.checkpw
    monkeypatch.setattr(
        bcrypt, "checkpw", lambda tried, known: checked.append(known[:7]) or real(tried, known)
    )

    await account_server.join("ada")
    checked.clear()
    wrong = await account_server.ask("POST", LOGIN, {"username": "ada", "password": "wrong horse"})
    unknown = await account_server.ask("POST", LOGIN, {"username": username, "password": "wrong horse"})
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.json() == unknown.json()
    assert wrong.headers["www-authenticate"] == "Bearer"
    assert checked == [b"$2b$04$", b"$2b$04$"]


async def test_a_disabled_user_gets_that_error_only_with_the_right_password(account_server):
    admin = await account_server.join("boss", level=4)
    user = await account_server.join("ada")
    path = f"/auth/users/{user['user']['id']}"
    await account_server.ask("PUT", path, {"is_active": False}, token=admin["access_token"])
    wrong = await account_server.ask("POST", LOGIN, {"username": "ada", "password": "wrong horse"})
    right = await account_server.ask("POST", LOGIN, {"username": "ada", "password": "correct horse"})
    assert (wrong.status_code, wrong.json()["detail"]["kind"]) == (401, "sign_in_failed")
    assert (right.status_code, right.json()["detail"]["kind"]) == (403, "account_disabled")


async def test_signing_out_revokes_both_tokens_and_no_other_sign_in(account_server):
    first, second = await account_server.join("ada"), await account_server.enter("ada")
    account_changes: list[AccountChange] = []
    end = account_server.authenticator.subscribe(account_changes.append)
    assert (await account_server.ask("POST", "/auth/logout", token=first["access_token"])).status_code == 200
    dead = await account_server.ask("GET", "/auth/me", token=first["access_token"])
    assert (dead.status_code, dead.json()["detail"]["kind"]) == (401, "token_revoked")
    refresh = await account_server.ask("POST", "/auth/refresh", {"refresh_token": first["refresh_token"]})
    assert refresh.status_code == 401
    assert (await account_server.ask("GET", "/auth/me", token=second["access_token"])).status_code == 200
    caller = await account_server.authenticator.authenticate(second["access_token"])
    assert [each.because for each in account_changes] == [RevocationReason.SIGNED_OUT]
    assert not account_changes[0].concerns(caller)
    end()
    await account_server.ask("POST", "/auth/logout", token=second["access_token"])
    assert len(account_changes) == 1


async def test_a_changed_password_ends_the_other_sign_ins_and_the_old_password(account_server):
    here, there = await account_server.join("ada"), await account_server.enter("ada")
    caller_here = await account_server.authenticator.authenticate(here["access_token"])
    caller_there = await account_server.authenticator.authenticate(there["access_token"])
    account_changes: list[AccountChange] = []
    account_server.authenticator.subscribe(account_changes.append)
    body = {"current_password": "correct horse", "new_password": "battery staple"}
    answer = await account_server.ask("POST", "/auth/password", body, token=here["access_token"])
    assert answer.status_code == 200, answer.text
    assert (await account_server.ask("GET", "/auth/me", token=here["access_token"])).status_code == 200
    assert (await account_server.ask("GET", "/auth/me", token=there["access_token"])).status_code == 401
    old = await account_server.ask("POST", LOGIN, {"username": "ada", "password": "correct horse"})
    assert old.status_code == 401
    assert await account_server.enter("ada", "battery staple")
    assert [each.concerns(caller_there) for each in account_changes] == [True]
    assert [each.concerns(caller_here) for each in account_changes] == [False]


@pytest.mark.parametrize(
    ("current", "new", "field"),
    [
        ("wrong horse", "battery staple", "$.current_password"),
        ("correct horse", "correct horse", "$.new_password"),
        ("correct horse", "admin123", "$.new_password"),
        ("correct horse", "ADA.LOVELACE", "$.new_password"),
    ],
)
async def test_a_password_change_names_the_field_that_is_wrong(account_server, current, new, field):
    user = await account_server.join("ada.lovelace")
    body = {"current_password": current, "new_password": new}
    answer = await account_server.ask("POST", "/auth/password", body, token=user["access_token"])
    assert answer.status_code == 400
    assert list(answer.json()["detail"]["fields"]) == [field]


async def test_a_password_changed_while_the_old_one_is_checked_refuses_the_sign_in(
    account_server, monkeypatch
):
    await account_server.join("ada")
    right = account_server.passwords.is_correct

    async def slow(password, known):
        is_correct = await right(password, known)
        await account_server.operator.set_password("ada", "battery staple")
        return is_correct

    monkeypatch.setattr(account_server.passwords, "is_correct", slow)
    answer = await account_server.ask("POST", LOGIN, {"username": "ada", "password": "correct horse"})
    assert answer.status_code == 401


async def test_the_operator_adds_users_and_sets_passwords(account_server):
    user = await account_server.join("ada", level=2)
    assert [each.username for each in await account_server.operator.all_users()] == ["ada"]
    await account_server.operator.set_password("ADA", "battery staple")
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401
    assert await account_server.enter("ada", "battery staple")
