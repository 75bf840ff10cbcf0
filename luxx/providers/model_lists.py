"""The lists of models that providers have, as they were fetched last, and the check of names against them.

A list is stored with its provider, so it is the same at every server and after a restart. A check makes no
request. Where no list is stored, every name is sent to the provider.
"""

import difflib
import re
from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy import update
from sqlalchemy.orm import Session

from luxx.errors import UnlistedModel
from luxx.infra.clock import utc_now
from luxx.providers.listed_facts import MAX_LISTED
from luxx.providers.models import ProviderRow
from luxx.providers.registry import INTERNAL_TYPES

MAX_LISTS = 1_000
FRESH_SECONDS = 30.0  # A list of this age is not fetched again before a model is refused.
MAX_NEAR_NAMES = 5
MAX_COMPARED = 1_000  # Names that are compared with one that is not listed, each in up to half a millisecond.

_ALIAS = re.compile(r"(?:[-:@](?:latest|preview|\d{8}|\d{4}-\d\d-\d\d|\d\d-\d{4}|\d{3,4}))+$")
"""What distinguishes an alias from a dated name: `-latest`, a date, a version of three digits."""


class _ReadList(msgspec.Struct, frozen=True):
    """A list that was read when it was of this time. `stems`: its names without what aliases leave out."""

    fetched_at: datetime
    stems: frozenset[str]
    names: Sequence[str]


def store_list(session: Session, provider_id: int, names: Sequence[str]) -> None:
    """Stores the list of a provider; an empty one, or one that may be cut, means that it is not known."""
    is_known = 0 < len(names) < MAX_LISTED
    session.execute(
        update(ProviderRow)
        .where(ProviderRow.id == provider_id)
        .values(
            models=msgspec.json.encode(names).decode() if is_known else None,
            models_at=utc_now() if is_known else None,
        )
        .execution_options(synchronize_session=False)
    )


def is_fresh(row: ProviderRow) -> bool:
    """Whether the list was fetched a moment ago."""
    return row.models_at is not None and (utc_now() - row.models_at).total_seconds() < FRESH_SECONDS


class ModelLists:
    """Checks names of models. Keeps the lists that it has read, until a newer one is stored."""

    def __init__(self) -> None:
        self._lists: dict[int, _ReadList] = {}

    def check(self, row: ProviderRow, model: str | None, field: str = "$.model") -> None:
        """Raises UnlistedModel if the list is known and has neither the model nor one of its aliases.

        None or blanks: no model is named, so there is nothing to check.
        Called with the row's session open. The embedded model answers under its own name, whatever the list.
        """
        model = (model or "").strip()
        # Providers resolve some names in ways of their own.
        is_special = model.endswith("latest") or "@" in model or model.startswith("ft:")
        if not model or row.models_at is None or is_special or row.provider_type in INTERNAL_TYPES:
            return
        listed = self._read(row, row.models_at)
        if _stem(model) not in listed.stems:
            raise unlisted(row.id, row.name, model, listed.names, field)

    def _read(self, row: ProviderRow, fetched_at: datetime) -> _ReadList:
        listed = self._lists.get(row.id)
        if listed is None or listed.fetched_at != fetched_at:
            names = msgspec.json.decode(row.models or "[]", type=list[str])
            listed = self._lists[row.id] = _ReadList(fetched_at, frozenset(map(_stem, names)), names)
        if len(self._lists) > MAX_LISTS:
            del self._lists[next(iter(self._lists))]
        return listed


def unlisted(
    provider_id: int, provider_name: str, model: str, names: Sequence[str], field: str = "$.model"
) -> UnlistedModel:
    """The error that names the listed models which are most like the one that was asked for."""
    by_lower = {name.lower(): name for name in names}
    compared = list(by_lower)[:MAX_COMPARED]
    near = difflib.get_close_matches(model.lower(), compared, n=MAX_NEAR_NAMES, cutoff=0.5)
    shown = [by_lower[name] for name in near] or sorted(names)[:MAX_NEAR_NAMES]
    more = len(by_lower) - len(shown)
    others = f" and {more} more: see GET /providers/{provider_id}/models" if more else ""
    return UnlistedModel(
        f"provider '{provider_name}' has no model '{model}'; it has {', '.join(shown)}{others}",
        provider_id,
        field,
    )


def _stem(model: str) -> str:
    """The name without vendor, variant (`:free`) and version."""
    vendor, slash, name = model.lower().strip().rpartition("/")
    if slash and vendor != "models":
        name = name.partition(":")[0]
    return _ALIAS.sub("", name)
