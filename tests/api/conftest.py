"""A scripted provider and some users per module, on one server that most modules share."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from api.client import KEY, PASSWORD, ApiClient, document_of
from api.schema import Document
from api.server_process import ServerProcess
from luxx.providers.scripted import (
    Call,
    Counts,
    Finish,
    Gate,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    When,
)

CALL_ID = "call-1"
ASKS = [
    Call(name="file_list", arguments={}, id=CALL_ID),
    Call(
        name="ask_decision",
        arguments={"decision_type": "confirmation", "context": "Go on?", "options": []},
        id="call-2",
    ),
    Finish(reason="tool_calls"),
]


Join = Callable[..., ApiClient]
"""Adds a user, `tenant_id: int = 1, level: int = 1`, and signs them in."""

numbers = itertools.count()


@contextmanager
def answering(rules: Sequence[Rule]) -> Iterator[ScriptedProvider]:
    """A model with these answers. No test has to use every rule, but an unscripted call is a failure."""
    provider = ScriptedProvider(Script(rules=list(rules)))
    provider.__enter__()
    try:
        yield provider
    finally:
        unscripted = list(provider.unscripted)
        provider.__exit__(GeneratorExit, None, None)
    assert not unscripted


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    """A model with a fixed answer to each message."""
    rules = [
        Rule(name="refuses", when=When(user="refuse this"), status=401, message=f"wrong key {KEY}"),
        Rule(
            name="waits",
            when=When(user="wait here"),
            reply=[
                Text(text="I am"),
                Gate(name="waiting"),
                Text(text=" back."),
                Counts(completion=4),
                Finish(),
            ],
        ),
        Rule(name="asks", when=When(user="ask me", has_tool_result=False), reply=ASKS),
        Rule(
            name="uses a tool",
            when=When(user="use a tool", has_tool_result=False),
            reply=[Call(name="file_list", arguments={}, id=CALL_ID), Finish(reason="tool_calls")],
        ),
        Rule(
            name="plans",
            when=When(system="Split the goal"),
            reply=[Text(text='{"steps": [{"id": "a", "name": "Do it"}]}'), Counts(completion=9), Finish()],
        ),
        Rule(
            name="answers",
            reply=[Text(text="Hello there."), Counts(prompt=3, completion=2), Finish()],
        ),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """For modules that look at everything that a server stores or logs, or share things with a tenant."""
    folder: Path = tmp_path_factory.mktemp("server")
    with ServerProcess(folder) as running:
        yield running


@pytest.fixture(scope="module")
def server(shared_server: ServerProcess) -> ServerProcess:
    """Shared with other modules, whose users differ: do not stop it. A module may override it."""
    return shared_server


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> Document:
    return document_of(server)


@pytest.fixture(scope="module")
def nobody(server: ServerProcess, document: Document) -> Iterator[ApiClient]:
    """Not signed in."""
    with ApiClient(server, document) as person:
        yield person


@pytest.fixture(scope="module")
def admin(server: ServerProcess, document: Document, upstream: ScriptedProvider) -> Iterator[ApiClient]:
    """The operator, who has allowed the scripted provider's address."""
    with ApiClient(server, document).sign_in() as person:
        host = upstream.url.removeprefix("http://")
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": [host]})
        yield person


@pytest.fixture(scope="module")
def anna(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    """A new user of level 1, `anna` and a number, with a provider, which is her default."""
    with ApiClient(server, document).register(f"anna{next(numbers)}") as person:
        connect(person, upstream)
        yield person


@pytest.fixture(scope="module")
def bob(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    """Another new user of level 1 with a provider of his own."""
    with ApiClient(server, document).register(f"bob{next(numbers)}") as person:
        connect(person, upstream)
        yield person


@pytest.fixture
def join(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[Join]:
    """Adds users to a tenant, as the operator, and signs them in."""
    with ExitStack() as stack:

        def add_user(tenant_id: int = 1, level: int = 1) -> ApiClient:
            name = f"member{next(numbers)}"
            body = {"username": name, "password": PASSWORD, "permission_level": level, "tenant_id": tenant_id}
            admin.good("POST", "/auth/users", json=body)
            return stack.enter_context(ApiClient(server, document)).sign_in(name, PASSWORD)

        yield add_user


@pytest.fixture
def tenant_id(admin: ApiClient) -> int:
    """A new tenant."""
    created: int = admin.good("POST", "/admin/tenants", json={"name": f"tenant {next(numbers)}"})["id"]
    return created


def connect(person: ApiClient, upstream: ScriptedProvider, provider_type: str = "openai") -> int:
    """Creates a provider with the address of the scripted one. Returns its id."""
    body = {
        "name": "scripted",
        "provider_type": provider_type,
        "base_url": f"{upstream.url}/v1",
        "api_key": KEY,
        "default_model": "scripted",
        "is_default": True,
    }
    provider_id: int = person.good("POST", "/providers", json=body)["id"]
    return provider_id
