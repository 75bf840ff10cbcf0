"""The audit log of programs that went outside: each host they reached or were refused, by user and call."""

from msgspec import UNSET

from luxx.audit.afterwards import write_afterwards
from luxx.audit.entries import MAX_TARGET_ID, Action, Actor, Detail, Entry
from luxx.audit.refusals import Refusals
from luxx.network.outing import OTHERS, Outing, Traveller
from luxx.store.engine import Store

MOST_ENTRIES = 10
"""Of one call and each outcome; one more is for what is past them, with the names of all."""


class EgressRecord:
    """One per process."""

    def __init__(self, store: Store, refusals: Refusals) -> None:
        self._store = store
        self._refusals = refusals

    async def ended(self, outing: Outing) -> None:
        """Writes what came of it. Nothing here fails: what was done is done."""
        who = outing.traveller
        actor = Actor(user_id=who.user_id, tenant_id=who.tenant_id, username=who.username or None)
        reached = [(one.host, "", one.connections) for one in outing.reached]
        refused = [(one.host, one.kind, one.times) for one in outing.refused]
        entries = [
            Entry(action=Action.EGRESS, actor=actor, target_type="host", target_id=target, detail=detail)
            for target, _, detail in _told(who, reached)
        ]
        await write_afterwards(self._store, entries, failure="egress_not_recorded")
        for target, kind, detail in _told(who, refused):
            await self._refusals.note(Action.EGRESS, actor, kind, detail=detail, target=("host", target))


def _told(who: Traveller, hosts: list[tuple[str, str, int]]) -> list[tuple[str, str, Detail]]:
    """The target, kind and detail of each entry about hosts, which are given with their kinds and counts."""
    found = [
        (host, kind, _detail(who, count, [host] if len(host) > MAX_TARGET_ID else None))
        for host, kind, count in hosts[:MOST_ENTRIES]
    ]
    if others := hosts[MOST_ENTRIES:]:
        names = list(dict.fromkeys(host for host, _, _ in others))
        found.append((OTHERS, OTHERS, _detail(who, sum(count for _, _, count in others), names)))
    return found


def _detail(who: Traveller, count: int, hosts: list[str] | None) -> Detail:
    return Detail(
        name=who.tool,
        count=count,
        call_id=who.call_id[:64].replace("\0", "\ufffd"),
        run_id=who.run_id or UNSET,
        hosts=hosts or UNSET,
    )
