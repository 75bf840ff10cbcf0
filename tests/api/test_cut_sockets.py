"""Sockets close within 5 seconds when their user loses the sign-in or rights, also by the command line."""

import itertools
import time
from collections.abc import Iterator

import pytest

from api.client import PASSWORD, ApiClient
from api.schema import Document
from api.server_process import ServerProcess
from api.socket_client import new_ticket, open_socket, open_with_ticket
from api.test_losing_rights import take_rights

CUT_SECONDS = 5.0
numbers = itertools.count()
WAYS = [
    "signs out",
    "changes the password elsewhere",
    "uses a refresh token twice",
    "is disabled",
    "is demoted",
    "is deleted",
    "gets another password",
    "is moved",
    "is disabled by the command line",
    "is demoted by the command line",
    "is deleted by the command line",
    "gets another password by the command line",
]


@pytest.fixture
def user(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"cut{next(numbers)}") as person:
        admin.good("PUT", f"/auth/users/{person.user['id']}", json={"permission_level": 3})
        yield person.sign_in(person.user["username"], PASSWORD)


@pytest.mark.parametrize("how", WAYS)
def test_open_sockets_close_within_5_seconds_when_the_user(
    how: str, user: ApiClient, admin: ApiClient, anna: ApiClient, server: ServerProcess, document: Document
) -> None:
    with open_socket(user) as client, open_socket(anna) as control:
        client.drain()
        unused = new_ticket(user)
        started = time.monotonic()
        match how:
            case "signs out":
                user.good("POST", "/auth/logout")
            case "changes the password elsewhere":
                with ApiClient(server, document).sign_in(user.user["username"], PASSWORD) as elsewhere:
                    body = {"current_password": PASSWORD, "new_password": PASSWORD + "-new"}
                    elsewhere.good("POST", "/auth/password", json=body)
            case "uses a refresh token twice":
                body = {"refresh_token": user.refresh_token}
                user.good("POST", "/auth/refresh", json=body)
                user.bad("POST", "/auth/refresh", 401, json=body)
            case "is disabled":
                admin.good("PUT", f"/auth/users/{user.user['id']}", json={"is_active": False})
            case "is demoted":
                admin.good("PUT", f"/auth/users/{user.user['id']}", json={"permission_level": 1})
            case _:
                take_rights(how, admin, user, server)
                started = time.monotonic()
        code, reason = client.wait_closed(CUT_SECONDS)
        assert time.monotonic() - started < CUT_SECONDS
        assert code == 4401
        assert "new ticket" in reason
        assert control.drain() == []
    if "demoted" not in how:
        with open_with_ticket(server.url, unused) as late:
            assert late.wait_closed()[0] == 4401


def test_the_socket_of_another_sign_in_stays_open(
    user: ApiClient, server: ServerProcess, document: Document
) -> None:
    with (
        ApiClient(server, document).sign_in(user.user["username"], PASSWORD) as elsewhere,
        open_socket(user) as client,
        open_socket(elsewhere) as other,
    ):
        user.good("POST", "/auth/logout")
        assert client.wait_closed()[0] == 4401
        assert other.drain() == []
        elsewhere.good("GET", "/auth/me")
