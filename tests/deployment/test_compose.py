"""compose.yaml: its structure, and its commands as processes of this machine, with Caddy in front of them."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from api.client import ApiClient
from api.conftest import connect
from api.server_process import ServerProcess
from api.streams import stream_message
from forked_luxx import run_luxx
from process_environment import ROOT
from store.databases import new_database

from deployment.image import instructions, is_ignored
from deployment.proxies import NAME, PROXIES, reverse_proxy
from luxx.infra.config.file import OTHER_VARIABLES, load_config
from luxx.providers.discovery import ENVIRONMENT_KEYS
from luxx.providers.scripted import Finish, Rule, Script, ScriptedProvider, Text

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LUXX = [name for name, service in SERVICES.items() if service["image"] == "luxx"]
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]+\}")
VALUES = {"APP_SECRET_KEY": "0123456789abcdef" * 4, "POSTGRES_PASSWORD": "abc123", "SITE_NAME": NAME}
NOTICE_SECONDS = 4.0
DOCKERFILE = instructions(ROOT / "Dockerfile")


def environment_of(name: str) -> dict[str, str]:
    """The environment of a service whose `.env` has VALUES."""
    given = SERVICES[name]["environment"]
    return {key: VARIABLE.sub(lambda match: VALUES[match[1]], value) for key, value in given.items() if value}


# --- the structure ----------------------------------------------------------------------------------


def test_the_services_are_a_database_a_migration_two_servers_a_worker_and_a_proxy() -> None:
    assert set(SERVICES) == {"database", "migrate", "luxx-one", "luxx-two", "worker", "proxy"}
    commands = {name: SERVICES[name].get("command", ["luxx", "serve"]) for name in LUXX}
    assert commands == {
        "migrate": ["luxx", "migrate"],
        "luxx-one": ["luxx", "serve"],
        "luxx-two": ["luxx", "serve"],
        "worker": ["luxx", "worker", "--health-port", "8000"],
    }


def test_everything_starts_after_what_it_needs() -> None:
    needs = {
        name: {other: need["condition"] for other, need in service.get("depends_on", {}).items()}
        for name, service in SERVICES.items()
    }
    migrated = {"migrate": "service_completed_successfully"}
    assert needs == {
        "database": {},
        "migrate": {"database": "service_healthy"},
        **dict.fromkeys(("luxx-one", "luxx-two", "worker"), migrated),
        "proxy": {"luxx-one": "service_healthy", "luxx-two": "service_healthy"},
    }
    # The servers and the worker have the health check of the image.
    assert [name for name, service in SERVICES.items() if "healthcheck" in service] == ["database", "migrate"]
    assert "test" in SERVICES["database"]["healthcheck"]
    assert any(name == "HEALTHCHECK" for name, _ in DOCKERFILE)


def test_every_variable_of_a_luxx_service_means_something_to_luxx() -> None:
    text = (ROOT / "config.yaml").read_text("utf-8")
    for name in LUXX:
        for key in SERVICES[name]["environment"]:
            known = {f"{prefix}_API_KEY" for _, prefix in ENVIRONMENT_KEYS} | OTHER_VARIABLES
            assert key in known or key.startswith("LUXX_") or f"${{{key}:" in text, key
        # An unknown key would be refused.
        config = load_config(ROOT / "config.yaml", environment_of(name), {})
        assert config.database.url == "postgresql://luxx:abc123@database/luxx"
        assert config.app.secret_key == VALUES["APP_SECRET_KEY"]
        assert config.server.allowed_hosts == [NAME, "127.0.0.1"]


def test_the_trusted_proxy_is_the_address_of_the_proxy() -> None:
    address = SERVICES["proxy"]["networks"]["inside"]["ipv4_address"]
    assert {environment_of(name)["LUXX_SERVER__TRUSTED_PROXIES"] for name in LUXX} == {address}
    assert environment_of("proxy")["SITE_SERVERS"] == "luxx-one:8000 luxx-two:8000"


def test_the_servers_share_workspaces_and_each_has_a_data_directory() -> None:
    (volumes,) = [rest for name, rest in DOCKERFILE if name == "VOLUME"]
    data: list[str] = []
    for name in ("luxx-one", "luxx-two", "worker"):
        mounted = dict(volume.split(":")[::-1] for volume in SERVICES[name]["volumes"])
        assert list(mounted) == yaml.safe_load(volumes)
        assert mounted["/srv/luxx/workspaces"] == "workspaces"
        data.append(mounted["/srv/luxx/data"])
    assert len(set(data)) == 3
    named = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {name for name in named if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_files_that_are_mounted_or_copied_exist() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    copied = [
        name
        for instruction, rest in DOCKERFILE
        if instruction == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    ]
    assert [name for name in copied if is_ignored(name)] == []
    files = [name for name in mounted if name.startswith("./")] + copied
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert "./docs/operate/deploy/Caddyfile" in mounted


def test_containers_of_luxx_have_no_rights_that_they_do_not_need() -> None:
    for name in LUXX:
        service = SERVICES[name]
        assert (service["read_only"], service["cap_drop"], service["init"]) == (True, ["ALL"], True)
        assert service["tmpfs"] == ["/tmp:exec"]
        assert "privileged" not in service
        assert "ports" not in service
    assert [rest for name, rest in DOCKERFILE if name == "USER"] == ["10001:10001"]


# --- the commands -----------------------------------------------------------------------------------


@pytest.fixture
def model() -> Iterator[ScriptedProvider]:
    provider = ScriptedProvider(Script(rules=[Rule(reply=[Text(text="Hello."), Finish()])]))
    provider.__enter__()
    yield provider
    provider.__exit__(GeneratorExit, None, None)


def until_noticed(person: ApiClient) -> None:
    """Returns once the proxy has noticed that a server is dead: it asks every two seconds."""
    began = refused_at = time.monotonic()
    while time.monotonic() - refused_at < NOTICE_SECONDS:
        if person.http.post("/conversations", json={}).status_code >= 500:
            refused_at = time.monotonic()
        assert refused_at - began < NOTICE_SECONDS


@pytest.mark.heavy
def test_the_commands_of_the_services_work_together(
    postgresql: str, model: ScriptedProvider, tmp_path: Path
) -> None:
    """The same commands and variables; only the addresses are those of this machine."""
    settings = environment_of("luxx-one") | {
        "DATABASE_URL": new_database(postgresql, "compose"),
        "LUXX_SERVER__TRUSTED_PROXIES": "127.0.0.1",
    }
    # The helper that starts servers looks for this name, and else prepares a SQLite database.
    settings["LUXX_DATABASE__URL"] = settings["DATABASE_URL"]
    shutil.copy(ROOT / "config.yaml", tmp_path)
    migrate = SERVICES["migrate"]["command"][1:]
    with ExitStack() as hold:
        servers = [ServerProcess(tmp_path, data_dir=tmp_path / name, **settings) for name in ("one", "two")]
        migrated = run_luxx(*migrate, cwd=tmp_path, env={**settings, "HOME": str(tmp_path)})
        assert migrated.returncode == 0, migrated.stderr
        for server in servers:
            server.launch()
            hold.callback(server.kill)
        for server in servers:
            server.await_start()
        addresses = [server.url.removeprefix("http://") for server in servers]
        proxy = hold.enter_context(reverse_proxy(PROXIES[1], addresses, tmp_path))
        person = hold.enter_context(ApiClient(servers[0], None))
        person.http = proxy.client()
        person.sign_in()
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
        connect(person, model)
        assert len(person.good("GET", "/admin/processes")["items"]) == 2
        for is_left_alone in (False, True):
            for _ in servers:
                chat = person.good("POST", "/conversations", json={})["id"]
                with stream_message(person, chat, "hello") as stream:
                    assert stream.until("done")["status"] == "completed"
            if not is_left_alone:
                servers[0].kill()
                until_noticed(person)
