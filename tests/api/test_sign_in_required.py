"""Every operation of the document, without a token and with each kind of bad token."""

import base64
import json
from typing import Any

import httpx
import jwt
import pytest

from api.client import PASSWORD, ApiClient, check_shape
from api.conftest import numbers
from api.schema import Document, Operation
from api.server_process import ServerProcess

PUBLIC = {
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/auth/options"),
    ("GET", "/mcp/oauth/client.json"),
    ("POST", "/auth/login"),
    ("POST", "/auth/register"),
    ("POST", "/auth/refresh"),
    ("GET", "/setup"),
    ("POST", "/setup"),
    ("GET", "/shared/{token}"),
    ("GET", "/shared/{token}/images/{number}/{index}"),
}


def path_of(operation: Operation) -> str:
    path = operation.template
    for name in operation.names("path"):
        path = path.replace("{" + name + "}", "1")
    return path


def is_public(operation: Operation) -> bool:
    return (operation.method, operation.template) in PUBLIC or operation.template.startswith("/ui")


def unsigned(token: str) -> str:
    """The same claims without a signature."""
    head = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    return f"{head}.{token.split('.')[1]}."


def resigned(token: str, **claims: Any) -> str:
    """The same claims, signed with another key."""
    known = jwt.decode(token, options={"verify_signature": False})
    return jwt.encode({**known, **claims}, "a key that is not the server's, of 40 bytes", algorithm="HS256")


@pytest.fixture(scope="module")
def bad_headers(server: ServerProcess, document: Document, admin: ApiClient) -> dict[str, dict[str, str]]:
    """Bad Authorization headers, by what is wrong with them."""
    number = next(numbers)
    with (
        ApiClient(server, document).register(f"left{number}") as left,
        ApiClient(server, document).register(f"disabled{number}") as disabled,
        ApiClient(server, document).register(f"moved{number}") as moved,
        ApiClient(server, document).register(f"good{number}") as good,
    ):
        left_token, left_refresh = left.token, left.refresh_token
        left.good("POST", "/auth/logout")
        admin.good("PUT", f"/auth/users/{disabled.user['id']}", json={"is_active": False})
        with ApiClient(server, document).sign_in(moved.user["username"], PASSWORD) as again:
            body = {"current_password": PASSWORD, "new_password": PASSWORD + "2"}
            again.good("POST", "/auth/password", json=body)
        tokens = {
            "garbage": "garbage",
            "three parts of garbage": "a.b.c",
            "a refresh token": good.refresh_token,
            "a cut one": good.token[:-4],
            "an unsigned one": unsigned(good.token),
            "one signed by somebody": resigned(good.token),
            "one signed by somebody for the operator": resigned(good.token, sub="1"),
            "one signed out": left_token,
            "the refresh token of one signed out": left_refresh,
            "one of a disabled user": disabled.token,
            "one from before a change of the password": moved.token,
        }
        made = {name: {"authorization": f"Bearer {token}"} for name, token in tokens.items()}
        basic = base64.b64encode(f"good{number}:{PASSWORD}".encode()).decode()
        return {
            "none": {},
            "an empty one": {"authorization": "Bearer"},
            "another scheme": {"authorization": f"Basic {basic}"},
            "a good token without a scheme": {"authorization": good.token},
            "a good token in a cookie": {"cookie": f"access_token={good.token}; token={good.token}"},
            **made,
        }


def test_the_public_operations_are_those_of_the_contract(document: Document) -> None:
    public = {(each.method, each.template) for each in document.operations if each.is_public}
    assert {public_path for public_path in public if not public_path[1].startswith("/ui")} == PUBLIC


def test_every_other_operation_answers_401_to_each_bad_credential(
    server: ServerProcess, document: Document, bad_headers: dict[str, dict[str, str]]
) -> None:
    wrong: list[str] = []
    asked = 0
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        for operation in document.operations:
            if is_public(operation):
                continue
            for why, headers in bad_headers.items():
                response = client.request(operation.method, path_of(operation), headers=headers, content=b"{")
                check_shape(response)
                document.check(response)
                asked += 1
                if response.status_code != 401 or "www-authenticate" not in response.headers:
                    wrong.append(f"{operation} with {why}: {response.status_code} {response.text[:200]}")
    assert asked > 200
    assert not wrong, wrong


def test_a_good_token_is_let_in_where_the_bad_ones_are_not(anna: ApiClient, document: Document) -> None:
    for operation in document.operations:
        if not is_public(operation) and operation.method == "GET" and not operation.names("path"):
            response = anna.ask("GET", operation.template)
            assert response.status_code in (200, 400, 403), f"{operation}: {response.status_code}"


def test_a_token_in_the_query_is_no_sign_in(anna: ApiClient, nobody: ApiClient) -> None:
    nobody.bad("GET", f"/auth/me?token={anna.token}&access_token={anna.token}", 401)


def test_public_operations_need_no_token_and_mind_no_bad_one(nobody: ApiClient) -> None:
    for headers in ({}, {"authorization": "Bearer garbage"}):
        for path in ("/", "/health", "/ready", "/metrics", "/openapi.json", "/docs", "/ui/"):
            response = nobody.http.get(path, headers=headers)
            assert response.status_code == 200, f"{path} {headers}"


def test_a_refresh_token_is_good_once_and_its_reuse_ends_the_sign_in(
    server: ServerProcess, document: Document
) -> None:
    with ApiClient(server, document).register("rotating") as person:
        first = {"refresh_token": person.refresh_token}
        second = person.good("POST", "/auth/refresh", json=first)
        person.token = second["access_token"]
        person.good("GET", "/auth/me")
        person.bad("POST", "/auth/refresh", 401, json=first)
        person.bad("GET", "/auth/me", 401)
        person.bad("POST", "/auth/refresh", 401, json={"refresh_token": second["refresh_token"]})


def test_signing_out_ends_this_sign_in_and_no_other(server: ServerProcess, document: Document) -> None:
    with (
        ApiClient(server, document).register("twice") as one,
        ApiClient(server, document).sign_in("twice", PASSWORD) as two,
    ):
        one.good("POST", "/auth/logout")
        one.bad("GET", "/auth/me", 401)
        one.bad("POST", "/auth/refresh", 401, json={"refresh_token": one.refresh_token})
        two.good("GET", "/auth/me")


def test_an_access_token_says_as_little_as_it_must(anna: ApiClient) -> None:
    claims = jwt.decode(anna.token, options={"verify_signature": False})
    assert {"exp", "iat", "jti", "sub", "typ"} <= set(claims)
    assert jwt.get_unverified_header(anna.token)["alg"] == "HS256"
    assert claims["exp"] - claims["iat"] == 30 * 60
    assert "password" not in json.dumps(claims)
