"""Many pages in one call: each has its own result, its share of the output, and its source."""

import pytest

from luxx.tools.web.clients import WebClient
from luxx.wire.source import MAX_URL, Source, source_of
from web.conftest import WebTools
from web.site import Site, page


class FailingEngine:
    """An engine that fails with an unexpected error."""

    name = "broken"

    async def search(self, query: str, client: WebClient) -> list[Source]:
        raise RuntimeError("something else")


class WorkingEngine:
    name = "good"

    async def search(self, query: str, client: WebClient) -> list[Source]:
        return [source_of("https://x.example/", "X", "")]


def long_page(number: int) -> bytes:
    links = "".join(f"<a href='/{number}/{link}/{'y' * 60}'>more of it</a> " for link in range(50))
    text = "".join(f"<p>{'Some words of an article. ' * 20}</p>" for _ in range(60))
    return page(f"<title>Page {number}</title><article>{text}<p>{links}</p></article>")


@pytest.mark.parametrize("host", ["xn--a", "xn--zzzzzzzz99999.com", "a..b", "[::1"])
def test_an_invalid_address_fails_only_its_own_page(
    web: WebTools, public_site: Site, base_url: str, host: str
) -> None:
    public_site.routes["/good"] = page("<p>good")
    public_site.routes["/bad"] = page("", status="302 Found", Location=f"http://{host}/")
    result = web.execute("batch_fetch", urls=[f"{base_url}/good", f"{base_url}/bad", f"http://{host}/"])
    assert result.error is None
    good, *bad = result.data["results"]
    assert good["data"]["content"] == "good"
    assert not any(entry["success"] for entry in bad)
    assert not any("Error" in entry["error"] or "Invalid" in entry["error"] for entry in bad)


def test_a_long_batch_keeps_its_shape_its_sources_and_a_share_for_each(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    address = f"/item?{'p' * 300}"
    for number in range(10):
        public_site.routes[f"{address}{number}"] = long_page(number)
    urls = [f"{base_url}{address}{number}" for number in range(10)]
    data = web.execute("batch_fetch", urls=urls).data
    assert "output_cut" in data
    assert [source["url"] for source in data["sources"]] == urls
    assert [entry["url"] for entry in data["results"]] == urls
    for entry in data["results"]:
        assert len(entry["data"]["content"]) > 2000
        assert [len(link["url"]) for link in entry["data"]["links"]] == [len(f"{base_url}/0/0/") + 60] * 5


def test_links_of_any_length_leave_space_for_the_page(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    links = "".join(f"<a href='/{link}/{'y' * 1500}'>x</a> " for link in range(50))
    public_site.routes["/"] = page(f"<title>T</title><p>Words. {links}<p>{'Some words. ' * 5000}")
    data = web.read(f"{base_url}/")
    assert [source["title"] for source in data["sources"]] == ["T"]
    assert sum(len(link["url"]) for link in data["links"]) <= 10_000


def test_a_source_with_too_long_an_address_is_not_cited(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    target = "/" + "x" * (MAX_URL + 100)
    public_site.routes[target] = page("<p>far")
    data = web.read(f"{base_url}{target}")
    assert (data["content"], data.get("sources", [])) == ("far", [])
    engines = web_with_unreachable_results().execute("web_search", query="x")
    assert engines.data["sources"] == []


def web_with_unreachable_results() -> WebTools:
    class Far(WorkingEngine):
        async def search(self, query: str, client: WebClient) -> list[Source]:
            return [source_of("https://x.example/" + "x" * MAX_URL, "X", "")]

    return WebTools(engines=lambda _fetcher, _pages: [Far()])


def test_only_a_batch_without_failures_is_cached(web: WebTools, public_site: Site, base_url: str) -> None:
    urls = [f"{base_url}/a", f"{base_url}/b"]
    public_site.routes["/a"] = page("<p>a")
    first = web.execute("batch_fetch", urls=urls)
    assert [result["success"] for result in first.data["results"]] == [True, False]
    public_site.routes["/b"] = page("<p>b")
    second = web.execute("batch_fetch", urls=urls)
    assert [result["success"] for result in second.data["results"]] == [True, True]
    assert web.execute("batch_fetch", urls=urls) == second
    assert len(public_site.visits) == 4


def test_an_engine_that_raises_does_not_end_the_search() -> None:
    result = WebTools(engines=lambda _fetcher, _pages: [FailingEngine(), WorkingEngine()]).execute(
        "web_search", query="x"
    )
    assert result.data["engine"] == "good"
    alone = WebTools(engines=lambda _fetcher, _pages: [FailingEngine()]).execute("web_search", query="x")
    assert "broken: RuntimeError: something else" in (alone.error or "")


@pytest.mark.parametrize("name", ["db.internal", "wiki.corp", "nas.lan", "printer.local"])
def test_a_private_name_is_not_resolved(web: WebTools, name: str) -> None:
    assert "not on the public internet" in web.refusal(f"http://{name}:8080/")
    assert web.resolver.resolved_hosts == []


def test_control_an_allowed_private_name_is_resolved(public_site: Site) -> None:
    public_site.routes["/"] = page("<p>inside")
    web = WebTools(f"wiki.corp:{public_site.port}")
    assert web.read(f"http://wiki.corp:{public_site.port}/")["content"] == "inside"
    assert web.resolver.resolved_hosts == ["wiki.corp"]


@pytest.mark.parametrize("tag", ["font", "span", "div"])
def test_text_after_hundreds_of_open_tags_is_read(
    web: WebTools, public_site: Site, base_url: str, tag: str
) -> None:
    public_site.routes["/"] = page("".join(f"<{tag}>line {number} " for number in range(1000)) + "THE END")
    data = web.read(f"{base_url}/", format="text")
    assert data["content"].endswith("THE END")
    public_site.routes["/deep"] = page(f"words <{tag}>" * 5000 + "THE END")
    deep = web.read(f"{base_url}/deep", format="text")
    assert "words" in deep["content"]
    assert "Only the beginning was read" in deep["note"]


@pytest.mark.parametrize("size", ["0", "0.0px", ".0em", "00%"])
def test_text_of_font_size_zero_is_not_read(
    web: WebTools, public_site: Site, base_url: str, size: str
) -> None:
    public_site.routes["/"] = page(
        f"<p>seen <span style='font-size: {size}'>unseen</span><span style='font-size: 0.5em'>small"
    )
    assert web.read(f"{base_url}/", format="text")["content"] == "seen small"
