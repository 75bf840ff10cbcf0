"""One server and a scripted model per module; two users with a provider each."""

from collections.abc import Iterator

import pytest
from api.client import ApiClient
from api.conftest import connect
from api.schema import Document
from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, Thinking, When


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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> Document:
    with ApiClient(server, None) as nobody:
        return Document(nobody.good_document())


@pytest.fixture(scope="module")
def admin(server: ServerProcess, document: Document, upstream: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, document).sign_in() as person:
        hosts = [upstream.url.removeprefix("http://")]
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": hosts})
        yield person


@pytest.fixture(scope="module")
def ann(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    with ApiClient(server, document).register("ann") as person:
        connect(person, upstream)
        yield person


@pytest.fixture(scope="module")
def ben(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    with ApiClient(server, document).register("ben") as person:
        connect(person, upstream)
        yield person
