"""A browser and a server that most modules share, and a scripted provider for the tests of a module."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from api.server_process import ServerProcess, model_settings
from playwright.sync_api import Browser
from process_environment import free_port, scripted_models

from luxx.providers.scripted import Script, ScriptedProvider
from luxx.web.build import build
from web_ui.browser import Tab, open_tab, running_browser
from web_ui.person import Person
from web_ui.scripts import SCRIPT

OpenTab = Callable[..., AbstractContextManager[Tab]]


@pytest.fixture(scope="session")
def built_ui() -> None:
    """The UI of the present sources; a developer who changed them waits for the build once."""
    assert build() is None


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all tests of the UI. Its event loop runs in their thread, where others could have none."""
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def script() -> Script:
    """What the models of the module answer; a module can have a fixture of its own with this name."""
    return SCRIPT


@pytest.fixture(scope="session")
def models_port() -> int:
    """Where the models of each module are served, one module after the other."""
    return free_port()


@pytest.fixture(scope="module")
def models(script: Script, models_port: int) -> Iterator[ScriptedProvider]:
    with scripted_models(script, models_port) as provider:
        yield provider


@contextmanager
def running_server(folder: Path, models_port: int) -> Iterator[ServerProcess]:
    models = model_settings(f"http://127.0.0.1:{models_port}")
    level = {"LUXX_AUTH__DEFAULT_PERMISSION_LEVEL": "3"}
    with ServerProcess(folder, **models, **level, LUXX_ADMIN_PASSWORD="") as running:
        yield running


@pytest.fixture(scope="session")
def shared_ui_server(
    built_ui: None, models_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("server"), models_port) as running:
        yield running


@pytest.fixture(scope="module")
def own_server(
    built_ui: None, models: ScriptedProvider, models_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """For modules that change what all users see."""
    with running_server(tmp_path_factory.mktemp("server"), models_port) as running:
        yield running


@pytest.fixture(scope="module")
def server(models: ScriptedProvider, shared_ui_server: ServerProcess) -> ServerProcess:
    """Shared with other modules, whose users differ. A module may override it."""
    return shared_ui_server


@pytest.fixture
def new_tab(browser: Browser, server: ServerProcess) -> OpenTab:
    """`with new_tab() as tab:` opens a page of a profile of its own."""
    return partial(open_tab, browser, server.url)


@pytest.fixture
def person(server: ServerProcess, browser: Browser) -> Iterator[Person]:
    """A new user, who is signed in in each profile that they open."""
    new = Person(server, browser)
    yield new
    new.api.close()
