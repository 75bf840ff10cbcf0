"""The address rule: spellings of hosts that have been used to get around such rules."""

import pytest
from spellings import LOOPBACK_OR_PRIVATE, METADATA
from sqlalchemy import select

from luxx.errors import InvalidInput, NotAllowed, ProviderRefused, Unreachable
from luxx.infra.network.hosts import Reach, reach_of_address, resolve_host
from luxx.providers.addresses import AddressGuard, AddressRefused, GuardedResolver, parse_base_url
from luxx.providers.models import AllowedHostRow, NewProvider
from provider_service.services import ADMIN, ANN, OTHER_ADMIN, PUBLIC_ADDRESS, ProviderServices

NO_HOST_AT_ALL = [
    "http://",
    "http:///v1",
    "http://127%2e0.0.1/v1",
    "http://[::1%25eth0]/v1",
    "http://[::1/v1",
    "http://user:pass@models.example/v1",
    "http://models.example@127.0.0.1/v1",
    "http://models.example\\@127.0.0.1/v1",
    "http://models.example#@127.0.0.1/",
    "https://models.example/v1?x=1",
    "https://models.example/v1?api-version=1&x=1",
    "https://models.example/v1#top",
    "https://models.example/v 1",
    "https://models.example\t/v1",
    "https://models.example/\nv1",
    "https://models.example:0/v1",
    "https://models.example:99999/v1",
    "https://models.example:x/v1",
    "ftp://models.example/v1",
    "file:///etc/passwd",
    "gopher://127.0.0.1:70/",
    "javascript:alert(1)",
    "models.example/v1",
    "//models.example/v1",
    "http://256.256.256.256/",
    "http://1.2.3.4.5/",
    "http://08.0.0.1/",
    "http://a..b/",
    "http://-a.example/",
    "https://models.example/ü",
    "https://" + "a" * 600,
]


@pytest.mark.parametrize("host", LOOPBACK_OR_PRIVATE)
async def test_private_spelling_is_refused_to_a_user_and_allowed_by_an_operator_who_saves_it(
    services: ProviderServices, host: str
) -> None:
    guard = services.guard()
    url = f"http://{host}:8080/v1"
    for refused in (ANN, OTHER_ADMIN):
        with pytest.raises(NotAllowed, match="private address") as caught:
            await guard.check_base_url(refused, url)
        assert "allowed-hosts" in caught.value.message
    assert (await guard.check_base_url(ADMIN, url)).newly_allowed == parse_base_url(url).host_port


async def test_version_of_azures_api_is_kept_where_the_dialect_sends_it(services: ProviderServices) -> None:
    guard, url = services.guard(), "https://models.example/openai/v1?api-version=preview"

    assert (await guard.check_base_url(ANN, url, query=True)).url == url
    with pytest.raises(InvalidInput, match="leave out"):
        await guard.check_base_url(ANN, url)


@pytest.mark.parametrize("host", METADATA)
async def test_metadata_spelling_is_refused_to_everybody_at_any_time(
    services: ProviderServices, host: str
) -> None:
    guard = services.guard()
    for refused in (ANN, ADMIN):
        with pytest.raises(NotAllowed, match="metadata"):
            await guard.check_base_url(refused, f"http://{host}/v1")
    with pytest.raises(ProviderRefused, match="metadata"):
        await guard.check_connect(host, 80)


@pytest.mark.parametrize("url", NO_HOST_AT_ALL)
def test_url_that_two_parsers_may_read_differently_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        parse_base_url(url)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://API.OpenAI.com:443/v1/", "https://api.openai.com/v1"),
        ("http://models.example:80", "http://models.example"),
        ("http://models.example:8080/a/b/", "http://models.example:8080/a/b"),
        ("https://bücher.example/v1", "https://xn--bcher-kva.example/v1"),
        ("http://0x7f.1:11434/v1", "http://127.0.0.1:11434/v1"),
        ("http://[2606:2800:0:0::1]:81/v1", "http://[2606:2800::1]:81/v1"),
        ("http://[::ffff:8.8.8.8]/v1", "http://8.8.8.8/v1"),
    ],
)
def test_url_is_stored_in_one_spelling(text: str, url: str) -> None:
    assert parse_base_url(text).url == url


@pytest.mark.parametrize("address", [PUBLIC_ADDRESS, "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_address_is_public(address: str) -> None:
    assert reach_of_address(address) is Reach.PUBLIC


async def test_an_allowed_entry_covers_exactly_its_host_and_port(services: ProviderServices) -> None:
    guard = services.guard("127.0.0.1:11434", "LOCALHOST:1234", "[0::1]:5")
    for good in ("http://127.1:11434", "http://localhost.:1234", "http://[::1]:5/v1"):
        assert (await guard.check_base_url(ANN, good)).newly_allowed is None
    for bad in ("http://127.0.0.1:11435", "http://localhost:11434", "http://127.0.0.1", "http://[::1]:6"):
        with pytest.raises(NotAllowed):
            await guard.check_base_url(ANN, bad)


async def test_saving_by_an_operator_allows_the_address_for_others_and_is_listed(
    services: ProviderServices,
) -> None:
    async with services.open() as service:
        new = NewProvider(name="gpu", provider_type="openai_compatible", base_url="http://10.0.0.5:8000/v1")
        with pytest.raises(NotAllowed):
            await service.create(ANN, new)
        await service.create(ADMIN, new)
        await service.create(ANN, new)
    rows = await services.store.read(lambda session: list(session.scalars(select(AllowedHostRow))))
    assert [(row.host_port, row.allowed_by) for row in rows] == [("10.0.0.5:8000", ADMIN.user_id)]


async def test_name_that_turns_private_after_it_was_saved_is_refused_at_connect(
    services: ProviderServices,
) -> None:
    guard = services.guard()
    assert (await guard.check_base_url(ANN, "https://models.example/v1")).newly_allowed is None
    assert await guard.check_connect("models.example", 443) == [PUBLIC_ADDRESS]
    services.names["models.example"] = ["127.0.0.1"]
    with pytest.raises(ProviderRefused, match="private"):
        await guard.check_connect("models.example", 443)


async def test_literal_check_refuses_private_literals_and_resolves_nothing(
    services: ProviderServices,
) -> None:
    async def never(_host: str, _port: int) -> list[str]:
        raise AssertionError("resolved")

    guard = AddressGuard(services.store, ["127.0.0.1:1"], resolve=never)
    await guard.check_literal("models.example", 443)
    await guard.check_literal("127.0.0.1", 1)
    await guard.check_literal("8.8.8.8", 443)
    for host in ("127.0.0.1", "::1", "169.254.169.254", "2130706433"):
        with pytest.raises(ProviderRefused):
            await guard.check_literal(host, 2)


async def test_resolver_hands_out_only_checked_addresses(services: ProviderServices) -> None:
    resolver = GuardedResolver(services.guard("inside.example:8000"))
    assert [address["host"] for address in await resolver.resolve("models.example", 443)] == [PUBLIC_ADDRESS]
    assert [address["host"] for address in await resolver.resolve("inside.example", 8000)] == ["10.1.2.3"]
    with pytest.raises(AddressRefused) as caught:
        await resolver.resolve("inside.example", 8001)
    assert caught.value.reason.kind == "private_address"


async def test_unresolvable_name_may_be_saved_but_not_connected(services: ProviderServices) -> None:
    guard = AddressGuard(services.store, resolve=resolve_host)
    assert (await guard.check_base_url(ANN, "https://nobody.invalid/v1")).url == "https://nobody.invalid/v1"
    with pytest.raises(Unreachable, match="cannot be found"):
        await guard.check_connect("nobody.invalid", 443)


async def test_a_server_of_luxx_is_reached_with_its_key_and_named_by_nobody(
    services: ProviderServices,
) -> None:
    keys = {"127.0.0.1:40001": "its key"}
    services.names["mine.example"] = ["127.0.0.1"]
    allowed = ["127.0.0.1:40001", "mine.example:40001"]
    guard = AddressGuard(services.store, allowed, internal=keys, resolve=services.resolve)
    await guard.check_literal("127.0.0.1", 40001, "its key")
    for secret in ("", "another key"):
        with pytest.raises(ProviderRefused, match="port of this server itself"):
            await guard.check_literal("127.0.0.1", 40001, secret)
    for host in ("127.0.0.1", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "mine.example"):
        for person in (ANN, ADMIN):
            with pytest.raises(NotAllowed):
                await guard.check_base_url(person, f"http://{host}:40001/v1")
    with pytest.raises(ProviderRefused, match="port of this server itself"):
        await guard.check_connect("mine.example", 40001)
    keys.clear()
    assert await guard.check_connect("mine.example", 40001) == ["127.0.0.1"]


async def test_operators_alone_see_and_replace_allowed_hosts(services: ProviderServices) -> None:
    async with services.open("10.9.9.9:1") as service:
        for refused in (ANN, OTHER_ADMIN):
            with pytest.raises(NotAllowed):
                await service.allowed_hosts(refused)
            with pytest.raises(NotAllowed):
                await service.set_allowed_hosts(refused, [])
        with pytest.raises(InvalidInput, match="metadata"):
            await service.set_allowed_hosts(ADMIN, ["169.254.169.254:80"])
        with pytest.raises(InvalidInput, match="host:port"):
            await service.set_allowed_hosts(ADMIN, ["10.0.0.1"])
        first = await service.set_allowed_hosts(ADMIN, ["127.1:11434", "10.0.0.1:80", "127.0.0.1:11434"])
        assert [(address.host, address.source) for address in first] == [
            ("10.9.9.9:1", "config"),
            ("10.0.0.1:80", "admin"),
            ("127.0.0.1:11434", "admin"),
        ]
        second = await service.set_allowed_hosts(ADMIN, ["127.0.0.1:11434"])
        assert [address.host for address in second] == ["10.9.9.9:1", "127.0.0.1:11434"]
