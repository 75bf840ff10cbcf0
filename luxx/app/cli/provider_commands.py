"""`luxx provider add|list|test|models|default|remove`: the providers of a server, through its HTTP API.

A key is never an argument: it is asked for without echo, or read from an environment variable or stdin. One
that was typed and that the provider refuses is asked for again.
Exit codes: 0 done; 1 refused, unreachable, or the provider does not answer; 2 wrong options.
"""

import argparse
import getpass
import os
import sys
from typing import Any

import msgspec

from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi, ask
from luxx.app.cli.server_commands import add_subcommands, all_items, find_named, one_line
from luxx.errors import InvalidInput, NotFound
from luxx.infra.store.tables import Uses
from luxx.providers.catalog import DEFAULT_MODELS
from luxx.providers.check import WRONG_KEY, ProviderCheck
from luxx.providers.models import NewProvider, ProviderChanges, ProviderView, UpstreamModels
from luxx.providers.registry import ProviderType

KEY_TRIES = 3
"""How often a key that the provider refuses can be typed."""


def add_provider_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    new = add("add", _add, "connect a provider, and test it")
    new.add_argument("type", choices=[one.value for one in ProviderType], help="what it speaks")
    new.add_argument("--name", help="default: the type")
    new.add_argument("--base-url", default="", help="default: the address of the vendor")
    new.add_argument("--model", help="the default model; default: one that Luxx knows of the type")
    new.add_argument(
        "--key-env", metavar="VARIABLE", help="the environment variable with the key (default: asks for it)"
    )
    new.add_argument("--shared", action="store_true", help="let all users of the tenant use it")
    new.add_argument("--default", action="store_true", help="make it your default")
    add("list", _list, "list your providers and those shared with you")
    for name, work, help_text in (
        ("test", _test, "send a provider a small request and say what is wrong"),
        ("models", _models, "list the models of a provider"),
        ("default", _default, "make a provider your default"),
        ("remove", _remove, "remove a provider; its conversations stay"),
    ):
        command = add(name, work, help_text)
        command.add_argument("provider", help="its name or id")
        if name == "default":
            command.add_argument("--model", help="also change its default model")


async def provider_named(server: ServerApi, name: str) -> ProviderView:
    """The provider with this name or id. Raises NotFound, InvalidInput."""
    providers = await all_items(server, "/providers", ProviderView)
    provider = find_named(providers, name, lambda one: one.name, "providers")
    if provider is None:
        raise NotFound(f"there is no provider {name.strip()[:100]!r}; `luxx provider list` lists yours")
    return provider


async def print_models(server: ServerApi, _screen: Screen, name: str) -> int:
    """Prints the models of a provider, one on each line; 1 if the provider does not list them."""
    provider = await provider_named(server, name)
    offered = await server.call("GET", f"/providers/{provider.id}/models", UpstreamModels)
    if not offered.is_known:
        print(f"luxx: {one_line(offered.note or 'its models are not known')}", file=sys.stderr)
        return 1
    for card in offered.cards:
        if card.is_known:
            window = f"{card.context_window} tokens"
            known = f"{window}\t{'tools' if card.tools else 'no tools'}"
        else:
            known = "not in the catalogue"
        default = "\tdefault" if card.name == provider.default_model else ""
        _print(f"{card.name}\t{known}{default}")
    return 0


async def _add(server: ServerApi, screen: Screen, options: argparse.Namespace) -> int:
    new = NewProvider(
        name=options.name or options.type,
        provider_type=options.type,
        base_url=options.base_url,
        api_key=_key(options),
        default_model=options.model or DEFAULT_MODELS.get(options.type, ""),
        is_shared=options.shared,
        **({"is_default": True} if options.default else {}),
    )
    provider = await server.call("POST", "/providers", ProviderView, new)
    _print(f"added {provider.name} ({provider.id}){', your default' if provider.is_default else ''}")
    check = await _report(server, provider)
    is_typed = bool(new.api_key) and not options.key_env and sys.stdin.isatty()
    for _ in range(KEY_TRIES - 1 if is_typed else 0):
        if check.kind != WRONG_KEY:
            break
        key = ask(getpass.getpass, "API key (empty leaves the wrong one): ").strip()
        if not key:
            break
        await server.call("PUT", f"/providers/{provider.id}", ProviderView, ProviderChanges(api_key=key))
        check = await _report(server, provider)
    return _exit_code(check)


def _key(options: argparse.Namespace) -> str:
    """The key for the provider; empty where it needs none. Raises InvalidInput for a variable without one."""
    if options.type == ProviderType.LOCAL:
        return ""
    if options.key_env:
        key = os.environ.get(options.key_env, "").strip()
        if not key:
            raise InvalidInput(f"the environment variable {options.key_env} is not set or empty")
        return key
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    return ask(getpass.getpass, "API key (empty for none): ").strip()


async def _list(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for one in await all_items(server, "/providers", ProviderView):
        marks = [
            name
            for name, is_set in (
                ("default", one.is_default),
                ("shared", one.is_shared),
                ("disabled", not one.enabled),
            )
            if is_set
        ]
        fields = (
            str(one.id),
            one.name,
            one.provider_type,
            one.default_model or "no default model",
            one.base_url or "embedded",
            ", ".join(marks),
        )
        _print("\t".join(fields).rstrip("\t"))


async def _test(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> int:
    return _exit_code(await _report(server, await provider_named(server, options.provider)))


def _exit_code(check: ProviderCheck) -> int:
    return 0 if check.ok else 1


async def _report(server: ServerApi, provider: ProviderView) -> ProviderCheck:
    """Tests the provider and prints the outcome."""
    check = await server.call("POST", f"/providers/{provider.id}/test", ProviderCheck)
    if not check.ok:
        problem = one_line(f"{provider.name} does not answer ({check.kind}): {check.error}")
        print(CONTROL_CHARACTERS.sub("", f"luxx: {problem}"), file=sys.stderr)
        return check
    _print(f"{provider.name} answers ({check.latency_ms} ms)")
    if not provider.default_model and provider.provider_type != ProviderType.LOCAL:
        _print(f"choose its model: luxx provider default {provider.id} --model MODEL")
    return check


async def _models(server: ServerApi, screen: Screen, options: argparse.Namespace) -> int:
    return await print_models(server, screen, options.provider)


async def _default(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    provider = await provider_named(server, options.provider)
    model: dict[str, Any] = {"default_model": options.model} if options.model else {}
    changes = ProviderChanges(is_default=True, **model)
    provider = await server.call("PUT", f"/providers/{provider.id}", ProviderView, changes)
    _print(f"{provider.name} is your default, with {provider.default_model or 'no default model'}")


async def _remove(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    provider = await provider_named(server, options.provider)
    uses = msgspec.to_builtins(await server.call("DELETE", f"/providers/{provider.id}", Uses))
    default = _count_text(uses.pop("defaults"), "user")
    stopped = [_count_text(count, what.removesuffix("s")) for what, count in uses.items() if count]
    parts = [f"it was chosen for {', '.join(stopped)}"] if stopped else []
    parts += (
        [f"it was the default of {default}: choose another (luxx provider default NAME)"] if default else []
    )
    _print("; ".join([f"removed {provider.name}", *parts]))


def _count_text(count: int, what: str) -> str:
    """Nothing for 0."""
    return f"{count} {what}{'' if count == 1 else 's'}" if count else ""


def _print(line: str) -> None:
    print("\t".join(CONTROL_CHARACTERS.sub("", field) for field in line.split("\t")))
