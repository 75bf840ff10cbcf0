"""Forged, expired and reused tokens; refresh rotation; the guard."""

import asyncio
import base64
import json
import time
from datetime import timedelta

import jwt
import pytest

from luxx.domain.accounts.authentication import TokenSigner, TokenType
from luxx.domain.accounts.service import RevocationReason
from luxx.infra.secrets import derive_key

SECRET = "a secret of the tests, long enough"
KEY = derive_key(SECRET, "tokens")


def _claims(token, **changes):
    claims = jwt.decode(token, options={"verify_signature": False}) | changes
    return {name: value for name, value in claims.items() if value is not ...}


def _sign(token, key=KEY, algorithm="HS256", headers=None, **changes):
    return jwt.encode(_claims(token, **changes), key, algorithm=algorithm, headers=headers)


def _decode_part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _swap_parts(token):
    head, body, signature = token.split(".")
    return f"{head}.{_decode_part(_claims(token, sub='1'))}.{signature}" + body[:0]


FORGERIES = {
    "no algorithm": lambda t: f"{_decode_part({'alg': 'none', 'typ': 'JWT'})}.{t.split('.')[1]}.",
    "no algorithm, odd case": lambda t: f"{_decode_part({'alg': 'NoNe'})}.{t.split('.')[1]}.",
    "no algorithm, signature kept": lambda t: f"{_decode_part({'alg': 'none'})}.{'.'.join(t.split('.')[1:])}",
    "other algorithm": lambda t: _sign(t, key=KEY * 2, algorithm="HS512"),
    "same key, other algorithm": lambda t: _sign(t, key=KEY * 2, algorithm="HS384"),
    "other key": lambda t: _sign(t, key=b"k" * 32),
    "the secret itself as key": lambda t: _sign(t, key=SECRET.encode()),
    "key of another purpose": lambda t: _sign(t, key=derive_key(SECRET, "vault")),
    "other payload": _swap_parts,
    "signature cut": lambda t: t[:-4],
    "no signature": lambda t: t.rsplit(".", 1)[0] + ".",
    "two parts": lambda t: t.rsplit(".", 1)[0],
    "four parts": lambda t: t + ".x",
    "no text": lambda t: ".",
    "words": lambda t: "let me in",
    "very long": lambda t: t + "A" * 100_000,
    "critical header": lambda t: _sign(t, headers={"crit": ["luxx"], "luxx": 1}),
    "no exp": lambda t: _sign(t, exp=...),
    "no iat": lambda t: _sign(t, iat=...),
    "no jti": lambda t: _sign(t, jti=...),
    "no sub": lambda t: _sign(t, sub=...),
    "no sid": lambda t: _sign(t, sid=...),
    "no typ": lambda t: _sign(t, typ=...),
    "null exp": lambda t: _sign(t, exp=None),
    "text exp": lambda t: _sign(t, exp="9999999999"),
    "endless exp": lambda t: _sign(t, exp=float("inf")),
    "expired": lambda t: _sign(t, exp=int(time.time()) - 1),
    "made tomorrow": lambda t: _sign(t, iat=int(time.time()) + 86_400, exp=int(time.time()) + 90_000),
    "made in two minutes": lambda t: _sign(t, iat=int(time.time()) + 120),
    "unknown typ": lambda t: _sign(t, typ="root"),
    "refresh typ": lambda t: _sign(t, typ="refresh"),
    "list sid": lambda t: _sign(t, sid=["a"]),
    "unknown sid": lambda t: _sign(t, sid="0198c5f0-0000-7000-8000-000000000000"),
    "sql sid": lambda t: _sign(t, sid="' OR 1=1 --"),
    "other user": lambda t: _sign(t, sub="999"),
    "number sub": lambda t: _sign(t, sub=1),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_a_forged_access_token_is_refused(account_server, forge):
    user = await account_server.join("ada", level=4)
    token = forge(user["access_token"])
    answer = await account_server.ask("GET", "/auth/me", token=token)
    assert answer.status_code == 401, answer.text
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_token_of_a_server_whose_clock_is_a_little_ahead_is_taken(account_server):
    user = await account_server.join("ada")
    token = _sign(user["access_token"], iat=int(time.time()) + 30)
    assert (await account_server.ask("GET", "/auth/me", token=token)).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic YTpi", "bearer", "Token {}", "{}", "Bearer {} {}", "Bearer,{}"],
)
async def test_only_a_bearer_header_is_read(account_server, header):
    user = await account_server.join("ada")
    value = header.replace("{}", user["access_token"])
    answer = await account_server.ask("GET", "/auth/me", Authorization=value)
    assert answer.status_code == 401


async def test_a_token_elsewhere_than_in_the_header_is_not_read(account_server):
    token = (await account_server.join("ada"))["access_token"]
    answer = await account_server.ask(
        "GET", f"/auth/me?token={token}&access_token={token}", Cookie=f"token={token}"
    )
    assert answer.status_code == 401


ROUTES = [
    ("POST", "/auth/logout"),
    ("POST", "/auth/password"),
    ("GET", "/auth/me"),
    ("GET", "/auth/users"),
    ("GET", "/auth/users?page=0"),
    ("PUT", "/auth/users/1"),
    ("GET", "/settings"),
    ("PUT", "/settings"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_an_anonymous_client_with_a_wrong_body_gets_401(account_server, method, path):
    answer = await account_server.ask(method, path, b"{nonsense" if method != "GET" else None)
    assert answer.status_code == 401
    assert answer.json()["detail"]["kind"] == "not_signed_in"


async def test_an_access_token_expires_and_a_refresh_token_brings_a_new_one(account_server):
    user = await account_server.join("ada")
    account_server.clock.ahead = timedelta(minutes=31)
    late = await account_server.ask("GET", "/auth/me", token=user["access_token"])
    assert (late.status_code, late.json()["detail"]["kind"]) == (401, "token_expired")
    fresh = await account_server.ask("POST", "/auth/refresh", {"refresh_token": user["refresh_token"]})
    assert fresh.status_code == 200
    token = fresh.json()["data"]["access_token"]
    assert (await account_server.ask("GET", "/auth/me", token=token)).status_code == 200
    account_server.clock.ahead = timedelta(days=31)
    body = {"refresh_token": fresh.json()["data"]["refresh_token"]}
    assert (await account_server.ask("POST", "/auth/refresh", body)).json()["detail"][
        "kind"
    ] == "token_expired"


async def test_access_and_refresh_tokens_are_not_interchangeable(account_server):
    user = await account_server.join("ada")
    as_access = await account_server.ask("GET", "/auth/me", token=user["refresh_token"])
    as_refresh = await account_server.ask("POST", "/auth/refresh", {"refresh_token": user["access_token"]})
    kinds = [each.json()["detail"]["kind"] for each in (as_access, as_refresh)]
    assert kinds == ["token_wrong_type"] * 2
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 200


async def test_a_refresh_token_used_twice_ends_its_sign_in_and_no_other(account_server):
    user, other = await account_server.join("ada"), await account_server.enter("ada")
    account_changes = []
    account_server.authenticator.subscribe(account_changes.append)
    body = {"refresh_token": user["refresh_token"]}
    new = (await account_server.ask("POST", "/auth/refresh", body)).json()["data"]
    again = await account_server.ask("POST", "/auth/refresh", body)
    assert (again.status_code, again.json()["detail"]["kind"]) == (401, "token_reused")
    for token in (user["access_token"], new["access_token"]):
        assert (await account_server.ask("GET", "/auth/me", token=token)).status_code == 401
    body = {"refresh_token": new["refresh_token"]}
    assert (await account_server.ask("POST", "/auth/refresh", body)).status_code == 401
    assert (await account_server.ask("GET", "/auth/me", token=other["access_token"])).status_code == 200
    assert [each.because for each in account_changes] == [RevocationReason.TOKEN_REUSED]


async def test_of_ten_concurrent_refreshes_one_succeeds_and_the_sign_in_ends(account_server):
    user = await account_server.join("ada")
    body = {"refresh_token": user["refresh_token"]}
    answers = await asyncio.gather(*(account_server.ask("POST", "/auth/refresh", body) for _ in range(10)))
    assert sorted(each.status_code for each in answers) == [200] + [401] * 9
    assert (await account_server.ask("GET", "/auth/me", token=user["access_token"])).status_code == 401


@pytest.mark.parametrize(
    "body", [{}, {"refresh_token": 7}, {"refresh_token": None}, {"refresh_token": "x" * 10_001}]
)
async def test_a_bad_refresh_body_is_refused_with_400(account_server, body):
    assert (await account_server.ask("POST", "/auth/refresh", body)).status_code == 400


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "é"])
async def test_an_invalid_refresh_token_is_refused_with_401(account_server, token):
    assert (await account_server.ask("POST", "/auth/refresh", {"refresh_token": token})).status_code == 401


async def test_a_user_deleted_from_the_database_is_signed_out(account_server):
    from_before = await account_server.join("ada")
    with account_server.store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM users")
    assert (await account_server.ask("GET", "/auth/me", token=from_before["access_token"])).status_code == 401
    body = {"refresh_token": from_before["refresh_token"]}
    assert (await account_server.ask("POST", "/auth/refresh", body)).status_code == 401
    newcomer = await account_server.join("eve")
    assert newcomer["user"]["id"] > from_before["user"]["id"], "an id is never given again"


async def test_the_database_holds_no_refresh_token(account_server):
    user = await account_server.join("ada")
    with account_server.store.engine.begin() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM sign_ins").all()
    jti = _claims(user["refresh_token"])["jti"]
    assert user["refresh_token"] not in str(rows)
    assert jti not in str(rows)


async def test_expired_sign_ins_are_deleted_at_the_next_one(account_server):
    await account_server.join("ada")
    account_server.clock.ahead = timedelta(days=31)
    await account_server.enter("ada")
    with account_server.store.engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sign_ins").scalar() == 1


async def test_recheck_ends_a_stream_whose_sign_in_ended(account_server):
    user = await account_server.join("ada")
    caller = await account_server.authenticator.authenticate(user["access_token"])
    assert await account_server.authenticator.recheck(caller) == caller
    await account_server.accounts.sign_out(caller)
    with pytest.raises(Exception, match="sign-in has ended"):
        await account_server.authenticator.recheck(caller)


def test_two_servers_with_one_secret_read_each_other_and_with_two_do_not():
    token = TokenSigner(SECRET).make(TokenType.ACCESS, user_id=1, sign_in_id="s")
    assert TokenSigner(SECRET).read(token, TokenType.ACCESS).sid == "s"
    with pytest.raises(Exception, match="not valid"):
        TokenSigner("another secret, as long").read(token, TokenType.ACCESS)
