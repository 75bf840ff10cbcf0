"""The private addresses that operators allow, on top of those in the configuration."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.accounts.rights import check_still_admin
from luxx.errors import InvalidInput
from luxx.network.hosts import Reach, join_host_port, parse_host_port, reach_of_name
from luxx.providers.addresses import AddressGuard
from luxx.providers.models import AllowedHostRow
from luxx.providers.queries import add_allowed, record_hosts
from luxx.providers.views import AllowedHostView
from luxx.store.engine import Store


async def list_allowed_hosts(store: Store, guard: AddressGuard, caller: Caller) -> list[AllowedHostView]:
    """What the configuration allows, then what operators allowed, oldest first."""
    caller.require_operator()
    rows = await store.read(
        lambda session: list(session.scalars(select(AllowedHostRow).order_by(AllowedHostRow.created_at)))
    )
    return [AllowedHostView(host=host, source="config") for host in sorted(guard.configured)] + [
        AllowedHostView(
            host=row.host_port, source="admin", allowed_by=row.allowed_by, created_at=row.created_at
        )
        for row in rows
    ]


async def replace_allowed_hosts(store: Store, caller: Caller, hosts: Collection[str]) -> None:
    """Makes `hosts` the whole of what operators allowed. Raises InvalidInput for what never may be."""
    caller.require_operator()
    wanted: set[str] = set()
    for entry in hosts:
        host, port = parse_host_port(entry)
        if reach_of_name(host) is Reach.FORBIDDEN:
            raise InvalidInput(f"'{entry}' is a metadata or link-local address and cannot be allowed")
        wanted.add(join_host_port(host, port))

    def work(session: Session) -> None:
        check_still_admin(session, caller)
        known = {row.host_port: row for row in session.scalars(select(AllowedHostRow))}
        for host_port in known.keys() - wanted:
            session.delete(known[host_port])
        for host_port in sorted(wanted - known.keys()):
            add_allowed(session, caller, host_port)
        record_hosts(session, caller, added=wanted - known.keys(), removed=known.keys() - wanted)

    await store.write(work)
