"""The first user, the default password, which peers count as local, and rate limits."""

import asyncio

import pytest

from luxx.api.http.authentication import PeerReader
from luxx.domain.accounts.caller import RateLimit
from luxx.domain.accounts.passwords import Passwords
from luxx.errors import ConfigError, TooMany

ADMIN = {"username": "admin", "password": "admin123"}


async def test_the_first_user_is_admin_with_the_default_password_and_only_once(account_server):
    assert await account_server.operator.ensure_first_user() is True
    assert await account_server.operator.ensure_first_user() is False
    admin = await account_server.enter("admin", "admin123")
    user = admin["user"]
    assert (user["role"], user["permission_level"], user["must_change_password"]) == ("admin", 4, True)
    assert (await account_server.ask("GET", "/auth/users", token=admin["access_token"])).status_code == 200


async def test_two_servers_that_start_at_once_make_one_admin(account_server):
    made = await asyncio.gather(*(account_server.operator.ensure_first_user() for _ in range(5)))
    assert sum(made) == 1
    assert len(await account_server.operator.all_users()) == 1


async def test_a_server_with_users_gets_no_admin(account_server):
    await account_server.join("ada")
    assert await account_server.operator.ensure_first_user() is False


async def test_a_configured_first_password_is_no_default(account_server):
    await account_server.operator.ensure_first_user("chosen by the owner")
    body = {"username": "admin", "password": "chosen by the owner"}
    answer = await account_server.ask("POST", "/auth/login", body, address="203.0.113.9")
    assert answer.status_code == 200
    assert answer.json()["data"]["user"]["must_change_password"] is False


async def test_the_default_as_the_configured_first_password_is_still_the_default(account_server):
    await account_server.operator.ensure_first_user("admin123")
    answer = await account_server.ask("POST", "/auth/login", ADMIN, address="203.0.113.9")
    assert answer.status_code == 403


async def test_an_invalid_first_password_stops_the_start(account_server):
    with pytest.raises(ConfigError, match="LUXX_ADMIN_PASSWORD"):
        await account_server.operator.ensure_first_user("short")


OUTSIDE = [
    ("203.0.113.9", {}),
    ("192.168.1.20", {}),
    ("::ffff:203.0.113.9", {}),
    ("testclient", {}),
    ("", {}),
    ("127.0.0.1", {"X_Forwarded_For": "127.0.0.1"}),
    ("127.0.0.1", {"X_Forwarded_For": ""}),
    ("127.0.0.1", {"Forwarded": "for=127.0.0.1"}),
    ("127.0.0.1", {"X_Real_IP": "127.0.0.1"}),
    ("127.0.0.1", {"X_Forwarded_Host": "luxx.example"}),
    ("127.0.0.1", {"Via": "1.1 proxy"}),
    ("203.0.113.9", {"X_Forwarded_For": "127.0.0.1"}),
]


@pytest.mark.parametrize(("address", "headers"), OUTSIDE)
async def test_the_default_password_is_refused_from_other_machines(account_server, address, headers):
    await account_server.operator.ensure_first_user()
    tokens = await account_server.enter("admin", "admin123")
    refresh = {"refresh_token": tokens["refresh_token"]}
    answers = [
        await account_server.ask("POST", "/auth/login", ADMIN, address=address, **headers),
        await account_server.ask("GET", "/auth/me", token=tokens["access_token"], address=address, **headers),
        await account_server.ask("POST", "/auth/refresh", refresh, address=address, **headers),
    ]
    for answer in answers:
        assert answer.status_code == 403
        assert answer.json()["detail"]["kind"] == "default_password"
        assert "luxx user passwd admin" in answer.json()["error"]
    wrong = await account_server.ask(
        "POST", "/auth/login", ADMIN | {"password": "guess"}, address=address, **headers
    )
    assert wrong.status_code == 401, "a wrong password does not tell that the default stands"
    assert (await account_server.ask("POST", "/auth/refresh", refresh)).status_code == 200, (
        "it was not used up"
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
async def test_the_default_password_works_on_this_machine_and_once_changed_everywhere(
    account_server, address
):
    await account_server.operator.ensure_first_user()
    answer = await account_server.ask("POST", "/auth/login", ADMIN, address=address)
    token = answer.json()["data"]["access_token"]
    body = {"current_password": "admin123", "new_password": "battery staple"}
    changed = await account_server.ask("POST", "/auth/password", body, token=token, address=address)
    assert changed.json()["data"]["must_change_password"] is False
    assert (
        await account_server.ask("GET", "/auth/me", token=token, address="203.0.113.9")
    ).status_code == 200
    body = {"username": "admin", "password": "battery staple"}
    assert (await account_server.ask("POST", "/auth/login", body, address="203.0.113.9")).status_code == 200


async def test_a_trusted_proxy_on_this_machine_does_not_make_its_clients_local(build_server):
    account_server = build_server(trusted_proxies=["127.0.0.1"])
    await account_server.operator.ensure_first_user()
    for forwarded in ("203.0.113.9", "127.0.0.1", "127.0.0.1, 203.0.113.9"):
        answer = await account_server.ask("POST", "/auth/login", ADMIN, X_Forwarded_For=forwarded)
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "203.0.113.9:4711", "203.0.113.9"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "203.0.113.9, nonsense", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("198.51.100.7", "203.0.113.9", "198.51.100.7"),
    ],
)
async def test_behind_trusted_proxies_the_client_is_the_last_address_that_is_not_theirs(
    build_server, peer, forwarded, expected
):
    account_server = build_server(trusted_proxies=["10.0.0.0/8"], limits={"logins_per_minute": 1})
    body = {"username": "nobody", "password": "wrong horse"}
    first = await account_server.ask("POST", "/auth/login", body, address=peer, X_Forwarded_For=forwarded)
    second = await account_server.ask("POST", "/auth/login", body, address=expected)
    assert (first.status_code, second.status_code) == (401, 429)


def test_a_trusted_proxy_that_is_no_address_stops_the_start():
    with pytest.raises(ConfigError, match="trusted_proxies"):
        PeerReader(["nginx"])


async def test_guessing_is_limited_before_the_password_is_checked(build_server, monkeypatch):
    account_server = build_server(limits={"logins_per_minute": 3})
    await account_server.operator.ensure_first_user("chosen by the owner")
    checked = []
    real = account_server.passwords.is_correct

    async def counted(password, known):
        checked.append(password)
        return await real(password, known)

    monkeypatch.setattr(account_server.passwords, "is_correct", counted)
    body = {"username": "admin", "password": "wrong horse"}
    answers = [await account_server.ask("POST", "/auth/login", body) for _ in range(5)]
    assert [each.status_code for each in answers] == [401, 401, 401, 429, 429]
    assert len(checked) == 3
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
    elsewhere = {"username": "admin", "password": "chosen by the owner"}
    owner = await account_server.ask("POST", "/auth/login", elsewhere, address="203.0.113.9")
    assert owner.status_code == 200, "one who fails on purpose does not keep the owner out"


async def test_guessing_one_name_from_many_addresses_is_limited_too(build_server):
    account_server = build_server(limits={"logins_per_minute": 2})
    body = {"username": "Victim", "password": "wrong horse"}
    codes = [
        (await account_server.ask("POST", "/auth/login", body, address=f"198.51.100.{i}")).status_code
        for i in range(12)
    ]
    assert codes == [401] * 10 + [429] * 2


async def test_one_network_of_ipv6_is_one_peer(build_server):
    account_server = build_server(limits={"logins_per_minute": 2})
    codes = []
    for i in range(4):
        body = {"username": f"nobody{i}", "password": "wrong horse"}
        answer = await account_server.ask("POST", "/auth/login", body, address=f"2001:db8::{i + 1}")
        codes.append(answer.status_code)
    assert codes == [401, 401, 429, 429]


async def test_right_passwords_are_not_limited_and_registrations_are(build_server):
    account_server = build_server(limits={"logins_per_minute": 2})
    await account_server.join("ada")
    for _ in range(5):
        await account_server.enter("ada")
    codes = []
    for i in range(3):
        body = {"username": f"new{i}", "password": "correct horse"}
        codes.append((await account_server.ask("POST", "/auth/register", body)).status_code)
    assert codes == [200, 200, 429]


async def test_the_current_password_cannot_be_guessed_with_a_stolen_token(build_server):
    account_server = build_server(limits={"logins_per_minute": 2})
    token = (await account_server.join("ada"))["access_token"]
    body = {"current_password": "wrong horse", "new_password": "battery staple"}
    codes = [
        (await account_server.ask("POST", "/auth/password", body, token=token)).status_code for _ in range(3)
    ]
    assert codes == [400, 400, 429]


async def test_requests_are_limited_by_user(build_server):
    account_server = build_server(limits={"requests_per_minute": 3})
    ada, eve = await account_server.join("ada"), await account_server.join("eve")
    codes = [
        (await account_server.ask("GET", "/auth/me", token=ada["access_token"])).status_code for _ in range(4)
    ]
    assert codes == [200, 200, 200, 429]
    assert (await account_server.ask("GET", "/auth/me", token=eve["access_token"])).status_code == 200


def test_a_bucket_refills_evenly_and_remembers_a_bounded_number_of_keys():
    now = [0.0]
    limit = RateLimit(60, "too many", entries=2, clock=lambda: now[0])
    for _ in range(60):
        limit.consume("a")
    with pytest.raises(TooMany) as caught:
        limit.consume("a")
    assert caught.value.retry_after == 1
    now[0] = 1.0
    limit.consume("a")
    with pytest.raises(TooMany):
        limit.consume("a")
    limit.consume("b")
    limit.consume("c")
    limit.consume("a")


async def test_a_full_queue_of_passwords_refuses_the_next():
    passwords = Passwords(cost=10, threads=1, queue=2)
    first = [asyncio.ensure_future(passwords.is_correct("a", None)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooMany):
        await passwords.is_correct("a", None)
    assert await asyncio.gather(*first) == [False, False]
    assert await passwords.is_correct("a", None) is False
    passwords.close()


async def test_a_disconnected_caller_frees_a_slot_in_the_queue():
    passwords = Passwords(cost=10, threads=1, queue=2)
    first = asyncio.ensure_future(passwords.is_correct("a", None))
    for _ in range(5):
        waiting = asyncio.ensure_future(passwords.is_correct("a", None))
        await asyncio.sleep(0)
        waiting.cancel()
        left = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(left[0], asyncio.CancelledError)
    assert await first is False
    passwords.close()
