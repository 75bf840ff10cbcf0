"""Many pages at once: each with its own end, its own share of the room, and its source."""

import pytest

from luxx.tools.web.visitors import WebClient
from luxx.wire.step import MAX_URL, Source, source_of
from web.conftest import WebTools
from web.site import Site, page


class Broken:
    """An engine that fails in a way that nobody thought of."""

    name = "broken"

    async def search(self, query: str, client: WebClient) -> list[Source]:
        raise RuntimeError("something else")


class Good:
    name = "good"

    async def search(self, query: str, client: WebClient) -> list[Source]:
        return [source_of("https://x.example/", "X", "")]


def long_page(number: int) -> bytes:
    links = "".join(f"<a href='/{number}/{link}/{'y' * 60}'>more of it</a> " for link in range(50))
    text = "".join(f"<p>{'Some words of an article. ' * 20}</p>" for _ in range(60))
    return page(f"<title>Page {number}</title><article>{text}<p>{links}</p></article>")


@pytest.mark.parametrize("host", ["xn--a", "xn--zzzzzzzz99999.com", "a..b", "[::1"])
def test_an_address_that_is_none_ends_only_its_own_page(
    web: WebTools, public: Site, base_url: str, host: str
) -> None:
    public.routes["/good"] = page("<p>good")
    public.routes["/bad"] = page("", status="302 Found", Location=f"http://{host}/")
    result = web.execute("batch_fetch", urls=[f"{base_url}/good", f"{base_url}/bad", f"http://{host}/"])
    assert result.error is None
    good, *bad = result.data["results"]
    assert good["data"]["content"] == "good"
    assert not any(one["success"] for one in bad)
    assert not any("Error" in one["error"] or "Invalid" in one["error"] for one in bad)


def test_a_long_batch_keeps_its_shape_its_sources_and_a_share_for_each(
    web: WebTools, public: Site, base_url: str
) -> None:
    address = f"/item?{'p' * 300}"
    for number in range(10):
        public.routes[f"{address}{number}"] = long_page(number)
    urls = [f"{base_url}{address}{number}" for number in range(10)]
    data = web.execute("batch_fetch", urls=urls).data
    assert "output_cut" in data
    assert [source["url"] for source in data["sources"]] == urls
    assert [one["url"] for one in data["results"]] == urls
    for one in data["results"]:
        assert len(one["data"]["content"]) > 2000
        assert [len(link["url"]) for link in one["data"]["links"]] == [len(f"{base_url}/0/0/") + 60] * 5


def test_links_of_any_length_leave_space_for_the_page(web: WebTools, public: Site, base_url: str) -> None:
    links = "".join(f"<a href='/{link}/{'y' * 1500}'>x</a> " for link in range(50))
    public.routes["/"] = page(f"<title>T</title><p>Words. {links}<p>{'Some words. ' * 5000}")
    data = web.read(f"{base_url}/")
    assert [source["title"] for source in data["sources"]] == ["T"]
    assert sum(len(link["url"]) for link in data["links"]) <= 10_000


def test_a_source_too_long_to_cite_is_none(web: WebTools, public: Site, base_url: str) -> None:
    target = "/" + "x" * (MAX_URL + 100)
    public.routes[target] = page("<p>far")
    data = web.read(f"{base_url}{target}")
    assert (data["content"], data.get("sources", [])) == ("far", [])
    engines = web_of_far_results().execute("web_search", query="x")
    assert engines.data["sources"] == []


def web_of_far_results() -> WebTools:
    class Far(Good):
        async def search(self, query: str, client: WebClient) -> list[Source]:
            return [source_of("https://x.example/" + "x" * MAX_URL, "X", "")]

    return WebTools(engines=lambda _fetcher, _pages: [Far()])


def test_a_batch_with_a_failure_is_made_again_and_one_without_is_remembered(
    web: WebTools, public: Site, base_url: str
) -> None:
    urls = [f"{base_url}/a", f"{base_url}/b"]
    public.routes["/a"] = page("<p>a")
    first = web.execute("batch_fetch", urls=urls)
    assert [one["success"] for one in first.data["results"]] == [True, False]
    public.routes["/b"] = page("<p>b")
    second = web.execute("batch_fetch", urls=urls)
    assert [one["success"] for one in second.data["results"]] == [True, True]
    assert web.execute("batch_fetch", urls=urls) == second
    assert len(public.visits) == 4


def test_an_engine_that_breaks_is_not_the_end_of_a_search() -> None:
    result = WebTools(engines=lambda _fetcher, _pages: [Broken(), Good()]).execute("web_search", query="x")
    assert result.data["engine"] == "good"
    alone = WebTools(engines=lambda _fetcher, _pages: [Broken()]).execute("web_search", query="x")
    assert "broken: RuntimeError: something else" in (alone.error or "")


@pytest.mark.parametrize("name", ["db.internal", "wiki.corp", "nas.lan", "printer.local"])
def test_a_private_name_is_not_even_looked_up(web: WebTools, name: str) -> None:
    assert "not on the public internet" in web.refusal(f"http://{name}:8080/")
    assert web.names.asked == []


def test_control_a_private_name_that_is_allowed_is_looked_up(public: Site) -> None:
    public.routes["/"] = page("<p>inside")
    web = WebTools(f"wiki.corp:{public.port}")
    assert web.read(f"http://wiki.corp:{public.port}/")["content"] == "inside"
    assert web.names.asked == ["wiki.corp"]


@pytest.mark.parametrize("tag", ["font", "span", "div"])
def test_what_comes_after_hundreds_of_open_tags_is_read(
    web: WebTools, public: Site, base_url: str, tag: str
) -> None:
    public.routes["/"] = page("".join(f"<{tag}>line {number} " for number in range(1000)) + "THE END")
    data = web.read(f"{base_url}/", format="text")
    assert data["content"].endswith("THE END")
    public.routes["/deep"] = page(f"words <{tag}>" * 5000 + "THE END")
    deep = web.read(f"{base_url}/deep", format="text")
    assert "words" in deep["content"]
    assert "Only the beginning was read" in deep["note"]


@pytest.mark.parametrize("size", ["0", "0.0px", ".0em", "00%"])
def test_text_of_no_size_is_not_read(web: WebTools, public: Site, base_url: str, size: str) -> None:
    public.routes["/"] = page(
        f"<p>seen <span style='font-size: {size}'>unseen</span><span style='font-size: 0.5em'>small"
    )
    assert web.read(f"{base_url}/", format="text")["content"] == "seen small"
