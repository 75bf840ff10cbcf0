"""One server and a scripted model per module; two users with a provider each."""

from collections.abc import Iterator

import pytest
from api.client import ApiClient
from api.conftest import admin, connect, document, numbers, server
from api.schema import Document
from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, Thinking, When

__all__ = ["admin", "document", "server"]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    rules = [
        Rule(name="waits", when=When(user="wait here"), reply=[Gate(name="waiting"), Text(text="Back.")]),
        Rule(name="answers", reply=[Thinking(text="A greeting."), Text(text="Hello there.")]),
    ]
    provider = ScriptedProvider(Script(rules=rules))
    provider.__enter__()
    yield provider
    provider.__exit__(GeneratorExit, None, None)


@pytest.fixture(scope="module")
def ann(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"ann{next(numbers)}") as person:
        connect(person, upstream)
        yield person


@pytest.fixture(scope="module")
def ben(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"ben{next(numbers)}") as person:
        connect(person, upstream)
        yield person
