"""The private addresses that operators allow, on top of those in the configuration."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.errors import InvalidInput, NotAllowed
from luxx.providers.addresses import (
    AddressGuard,
    Reach,
    is_operator,
    join_host_port,
    parse_host_port,
    reach_of_name,
)
from luxx.providers.models import AllowedHostRow
from luxx.providers.queries import allow_host
from luxx.providers.views import AllowedHostView
from luxx.store.engine import Store


async def list_allowed_hosts(store: Store, guard: AddressGuard, caller: Caller) -> list[AllowedHostView]:
    """What the configuration allows, then what operators allowed, oldest first."""
    _require_operator(caller)
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
    _require_operator(caller)
    wanted: set[str] = set()
    for entry in hosts:
        host, port = parse_host_port(entry)
        if reach_of_name(host) is Reach.FORBIDDEN:
            raise InvalidInput(f"'{entry}' is a metadata or link-local address and cannot be allowed")
        wanted.add(join_host_port(host, port))

    def work(session: Session) -> None:
        for row in session.scalars(select(AllowedHostRow)):
            if row.host_port not in wanted:
                session.delete(row)
        for host_port in sorted(wanted):
            allow_host(session, caller, host_port)

    await store.write(work)


def _require_operator(caller: Caller) -> None:
    if not is_operator(caller):
        raise NotAllowed("only an administrator of the default tenant may see or change this")
