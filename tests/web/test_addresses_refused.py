"""Addresses that are not public are not reached: by no spelling, no redirect and no change of a
name's address.
"""

import pytest
from spellings import LOOPBACK_OR_PRIVATE, METADATA

from luxx.errors import ConfigError
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.network.hosts import Reach, reach_of_address
from luxx.tools.builtin import builtin_tools
from web.conftest import FakeResolver, WebTools
from web.site import Site, page, redirect

UNREADABLE = [
    "http://",
    "http:///a",
    "http://127%2e0.0.1/",
    "http://[::1%25eth0]/",
    "http://[::1/",
    "http://user:pass@public.example/",
    "http://public.example@127.0.0.1/",
    "http://public.example:80@127.0.0.1/",
    "http://public.example\\@127.0.0.1/",
    "http://127.0.0.1\\.public.example/",
    "http://public.example:0/",
    "http://public.example:22/",
    "http://public.example:25/",
    "http://public.example:99999/",
    "http://public.example:x/",
    "http://public.example/a b",
    "http://public.example/\r\nHost: x",
    "http://public\t.example/",
    "ftp://public.example/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:70/_x",
    "javascript:alert(1)",
    "data:text/html,x",
    "unix:///var/run/docker.sock",
    "public.example",
    "//public.example/",
    "http://256.1.1.1/",
    "http://1.2.3.4.5/",
    "http://08.0.0.1/",
    "http://a..b/",
    "http://-a.example/",
    "http://\ud800.example/",
    "http://\x00.example/",
    "   ",
]
WORDS = r"not on the public internet|metadata or link-local|not a valid"


SPECIAL = [
    "0.0.0.1", "100.64.0.0", "100.127.255.255", "192.0.0.0", "192.0.0.8", "192.0.0.9", "192.0.0.10",
    "192.0.0.170", "192.0.0.255", "192.0.2.1", "192.88.99.0", "192.88.99.1", "192.88.99.255", "198.18.0.0",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "240.0.0.0", "255.255.255.255",
    "::1.1.1.1", "::ffff:192.88.99.1", "64:ff9b::192.88.99.1", "64:ff9b:1::5db8:d70e", "64:ff9b:1:ffff::1",
    "100::1", "100:0:0:1::1", "2001::1", "2001:0:5db8:d70e::1", "2001:1::1", "2001:1::2", "2001:3::1",
    "2001:4:112::1", "2001:20::1", "2001:30::1", "2001:1ff:ffff::1", "2001:db8::1", "2002::1",
    "2002:5db8:d70e::1", "2002:ffff::1", "3fff::1", "3fff:fff:ffff::1", "5f00::1", "5f00:ffff::1", "fc00::1",
    "fec0::1", "feff:ffff::1",
]  # fmt: skip
"""Addresses at the edges of the ranges that the IANA keeps for special use."""
PUBLIC_NEIGHBOURS = [
    "1.1.1.1", "100.63.255.255", "100.128.0.1", "191.255.255.255", "192.0.1.0", "192.0.3.1", "192.88.98.255",
    "192.88.100.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2001:200::1", "2001:db7::1",
    "2001:db9::1", "2003::1", "2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808",
]  # fmt: skip
"""Public addresses, most of them just outside those ranges."""


def test_control_the_same_site_is_reached_where_it_is_allowed(forbidden_site: Site) -> None:
    web = WebTools(f"127.0.0.1:{forbidden_site.port}")
    assert web.read(f"http://127.1:{forbidden_site.port}/")["content"] == "the secret"
    assert forbidden_site.visits == ["/"]


async def test_no_spelling_reaches_this_machine(forbidden_site: Site) -> None:
    web = WebTools()

    errors: list[str] = []
    for host in [*LOOPBACK_OR_PRIVATE, *METADATA]:
        for scheme in ("http", "https"):
            result = await web.call("web_fetch", url=f"{scheme}://{host}:{forbidden_site.port}/")
            errors.append(f"{host}: {result.error}")
    assert len(errors) == 2 * (len(LOOPBACK_OR_PRIVATE) + len(METADATA))
    unlike = [error for error in errors if not any(word in error for word in WORDS.split("|"))]
    assert unlike == []
    assert forbidden_site.connections == 0


@pytest.mark.parametrize("address", SPECIAL)
def test_no_address_of_special_use_is_reached(address: str, forbidden_site: Site) -> None:
    web = WebTools(seconds=1.0)
    host = f"[{address}]" if ":" in address else address
    assert "not on the public internet" in web.refusal(f"http://{host}:{forbidden_site.port}/")
    web.resolver.addresses["named.example"] = [address]
    assert "not on the public internet" in web.refusal(f"http://named.example:{forbidden_site.port}/")


@pytest.mark.parametrize("address", PUBLIC_NEIGHBOURS)
def test_control_an_address_beside_those_is_public(address: str) -> None:
    assert reach_of_address(address) is Reach.PUBLIC


def test_the_addresses_of_a_name_decide_not_its_spelling(forbidden_site: Site) -> None:
    web = WebTools()
    hosts = [
        "innocent.example",
        "127.0.0.1.nip.example",
        "xn--bcher-kva.example",
        "bücher.example",
        "a_b.example",
    ]
    for host in hosts:
        assert "not on the public internet" in web.refusal(f"http://{host}:{forbidden_site.port}/")
    web.resolver.addresses["both.example"] = ["93.184.215.14", "127.0.0.1"]
    assert "not on the public internet" in web.refusal(f"http://both.example:{forbidden_site.port}/")
    web.resolver.addresses["cloud.example"] = ["169.254.169.254"]
    assert "metadata" in web.refusal(f"http://cloud.example:{forbidden_site.port}/")
    assert forbidden_site.connections == 0


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_that_two_parsers_may_read_differently_is_refused(url: str) -> None:
    web = WebTools()
    assert web.refusal(url)
    assert web.resolver.resolved_hosts == []


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"]
)
def test_no_redirect_reaches_a_private_address(
    web: WebTools, public_site: Site, forbidden_site: Site, base_url: str, status: str
) -> None:
    targets = [
        f"http://127.0.0.1:{forbidden_site.port}/",
        f"http://0x7f.1:{forbidden_site.port}/",
        f"http://[::ffff:127.0.0.1]:{forbidden_site.port}/",
        f"//localhost:{forbidden_site.port}/",
        f"http://innocent.example:{forbidden_site.port}/",
        f"https://127.0.0.1:{forbidden_site.port}/",
        f"http://public.example@127.0.0.1:{forbidden_site.port}/",
        f"http://127.0.0.1:{forbidden_site.port}\\@public.example/",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "http://[",
    ]
    for target in targets:
        public_site.routes["/"] = redirect(target, status)
        assert web.refusal(f"{base_url}/")
    assert len(public_site.visits) == len(targets)
    assert forbidden_site.connections == 0


def test_a_redirect_after_many_harmless_ones_is_checked_too(
    web: WebTools, public_site: Site, forbidden_site: Site, base_url: str
) -> None:
    for step in range(4):
        public_site.routes[f"/{step}"] = redirect(f"/{step + 1}")
    public_site.routes["/4"] = redirect(f"http://127.0.0.1:{forbidden_site.port}/")
    assert "not on the public internet" in web.refusal(f"{base_url}/0")
    assert public_site.visits == ["/0", "/1", "/2", "/3", "/4"]
    assert forbidden_site.connections == 0


def test_control_a_redirect_to_what_may_be_reached_is_followed(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    public_site.routes["/a"] = redirect("/b?x=1#part", "301 Moved")
    public_site.routes["/b?x=1"] = page("<title>Here</title><p>There you are.")
    data = web.read(f"{base_url}/a")
    assert (data["url"], data["title"], data["content"]) == (f"{base_url}/b?x=1", "Here", "There you are.")


def test_a_name_is_resolved_once_and_the_connection_uses_the_checked_address(forbidden_site: Site) -> None:
    resolver = FakeResolver()
    resolver.changes["rebind.example"] = [["93.184.215.14"], ["127.0.0.1"]]
    web = WebTools(resolver=resolver, seconds=1.0)
    assert web.refusal(f"http://rebind.example:{forbidden_site.port}/")
    assert resolver.resolved_hosts == ["rebind.example"]
    assert "not on the public internet" in web.refusal(f"http://rebind.example:{forbidden_site.port}/again")
    assert forbidden_site.connections == 0


def test_a_name_that_changes_between_redirects_is_checked_again(
    public_site: Site, forbidden_site: Site
) -> None:
    resolver = FakeResolver()
    resolver.changes["flip.example"] = [["93.184.215.14"], ["127.0.0.1"]]
    web = WebTools(f"public.example:{public_site.port}", resolver=resolver, seconds=2.0)
    public_site.routes["/"] = redirect(f"http://flip.example:{forbidden_site.port}/")
    base_url = f"http://public.example:{public_site.port}/"
    assert web.refusal(base_url)
    public_site.routes["/again"] = redirect(f"http://flip.example:{forbidden_site.port}/")
    assert "not on the public internet" in web.refusal(f"{base_url}again")
    assert forbidden_site.connections == 0


def test_an_allowed_entry_covers_exactly_its_host_and_port(forbidden_site: Site) -> None:
    web = WebTools(f"localhost:{forbidden_site.port}", "127.0.0.1:1")
    assert web.read(f"http://LOCALHOST.:{forbidden_site.port}/")["content"] == "the secret"
    assert web.refusal(f"http://127.0.0.1:{forbidden_site.port}/")
    assert web.refusal(f"http://other.example:{forbidden_site.port}/")
    assert forbidden_site.connections == 1


@pytest.mark.parametrize(
    "entry", ["10.0.0.1", "10.0.0.1:x", "169.254.169.254:80", "metadata.google.internal:80"]
)
def test_an_entry_that_cannot_be_allowed_stops_the_start(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"tools\.web_allow_private"):
        builtin_tools(ToolsConfig(web_allow_private=[entry]))


def test_proxies_of_the_environment_are_not_used(
    web: WebTools, public_site: Site, forbidden_site: Site, base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{forbidden_site.port}")
    public_site.routes["/"] = page("<p>direct")
    assert web.read(f"{base_url}/")["content"] == "direct"
    assert forbidden_site.connections == 0
