"""`/ui/`: the built files and their headers, the page for every other address, the answer without a build."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from litestar import Litestar
from litestar.di import Provide
from litestar.testing import TestClient

from luxx.api.http.errors import HANDLERS
from luxx.web.files import UiController, WebFiles

BROWSER = {"accept": "text/html,*/*;q=0.8"}


def client_of(dist: Path) -> TestClient[Litestar]:
    files = WebFiles(dist)
    app = Litestar(
        route_handlers=[UiController],
        dependencies={"web_files": Provide(lambda: files, sync_to_thread=False)},
        exception_handlers=HANDLERS,
        openapi_config=None,
    )
    return TestClient(app)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<p>Luxx</p>", "utf-8")
    (tmp_path / "diagram.html").write_text("<p>diagram</p>", "utf-8")
    (tmp_path / "artifact.html").write_text("<p>artifact</p>", "utf-8")
    (tmp_path / "build.json").write_text("{}", "utf-8")
    areas = '{"chat": ["assets/chat-1.js", "assets/common-2.js"], "rooms": ["assets/rooms-3.js"]}'
    (tmp_path / "preloaded.json").write_text(areas, "utf-8")
    script = tmp_path / "assets" / "index-Ab12.js"
    script.write_bytes(b"let plain")
    script.with_suffix(".js.gz").write_bytes(gzip.compress(b"let zipped"))
    return tmp_path


@pytest.fixture
def client(dist: Path) -> Iterator[TestClient[Litestar]]:
    with client_of(dist) as running:
        yield running


@pytest.mark.parametrize("path", ["/ui", "/ui/", "/ui/chat", "/ui/chat/01a2?x=1", "/ui/sign-in"])
def test_each_address_of_the_ui_is_its_page(client: TestClient[Litestar], path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.text) == (200, "<p>Luxx</p>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/ui", ["chat-1", "common-2"]),
        ("/ui/chat/01a2", ["chat-1", "common-2"]),
        ("/ui/rooms", ["rooms-3"]),
        ("/ui/chat,x", []),
        ("/ui/diagram.html", []),
        ("/ui/assets/index-Ab12.js", []),
    ],
)
def test_a_page_names_the_scripts_of_its_area(
    client: TestClient[Litestar], path: str, names: list[str]
) -> None:
    links = [f'</ui/assets/{name}.js>; rel="modulepreload"' for name in names]
    assert client.get(path).headers.get("link", "") == ", ".join(links)


@pytest.mark.parametrize(
    "path",
    [
        "/ui/missing.js",
        "/ui/assets/gone",
        "/ui/build.json",
        "/ui/preloaded.json",
        "/ui/%2e%2e/build.json",
        "/ui/..%2f..%2fx.py",
    ],
)
def test_a_file_that_is_not_there_is_no_page(client: TestClient[Litestar], path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(("accepted", "text"), [("gzip, br", "let zipped"), ("identity", "let plain")])
def test_assets_are_immutable_and_compressed_where_the_client_accepts_it(
    client: TestClient[Litestar], accepted: str, text: str
) -> None:
    answer = client.get("/ui/assets/index-Ab12.js", headers={"accept-encoding": accepted})
    assert answer.text == text
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["vary"] == "accept-encoding"


def test_only_the_page_that_draws_diagrams_may_have_style_elements(client: TestClient[Litestar]) -> None:
    assert (
        "style-src 'self' 'unsafe-inline'"
        in client.get("/ui/diagram.html").headers["content-security-policy"]
    )
    assert "content-security-policy" not in client.get("/ui/").headers  # the policy of all answers holds


def test_the_page_of_web_artifacts_has_neither_network_nor_origin(client: TestClient[Litestar]) -> None:
    policy = client.get("/ui/artifact.html").headers["content-security-policy"].split("; ")
    assert {"sandbox allow-scripts", "default-src 'none'", "connect-src 'none'"} <= set(policy)
    assert {"frame-src 'none'", "form-action 'none'", "frame-ancestors 'self'"} <= set(policy)
    assert not [part for part in policy if "'self'" in part and not part.startswith("frame-ancestors")]


def test_a_new_build_is_served_without_a_restart(client: TestClient[Litestar], dist: Path) -> None:
    assert client.get("/ui/").text == "<p>Luxx</p>"
    (dist / "index.new").write_text("<p>newer</p>", "utf-8")
    (dist / "index.new").rename(dist / "index.html")
    assert client.get("/ui/").text == "<p>newer</p>"


def test_without_a_build_the_answer_says_why_and_what_repairs_it(tmp_path: Path) -> None:
    (tmp_path / "build.json").write_text('{"problem": "npm did not answer"}', "utf-8")
    with client_of(tmp_path) as client:
        page = client.get("/ui/chat", headers=BROWSER)
        answer = client.get("/ui/", headers={"accept": "application/json"})
    for each in (page, answer):
        assert each.status_code == 503
        assert "npm did not answer" in each.text
        assert "make ui" in each.text
    assert answer.json()["detail"]["kind"] == "ui_not_built"
    assert "/docs" in page.text
