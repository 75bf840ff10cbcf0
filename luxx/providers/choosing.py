"""Which provider a run gets when it names one, and when it does not."""

from collections.abc import Callable

from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.errors import InvalidInput
from luxx.providers.models import ProviderRow
from luxx.providers.queries import enabled_rows, visible_row
from luxx.providers.registry import adapter_for


def chosen_row(
    session: Session, caller: Caller, provider_id: int | None, preferred_id: int | None
) -> ProviderRow:
    """The row of `provider_id` where it is named, else the best of those that are usable.

    Raises NotFound or InvalidInput with what to do about it.
    """
    if provider_id is not None:
        return _named(session, caller, provider_id)
    return _chosen(session, caller, preferred_id)


def _named(session: Session, caller: Caller, provider_id: int) -> ProviderRow:
    row = visible_row(session, caller, provider_id)
    if not row.enabled:
        raise InvalidInput(
            f"provider '{row.name}' is switched off; enable it or choose another",
            kind="provider_disabled",
        )
    adapter_for(row.provider_type)
    return row


def _chosen(session: Session, caller: Caller, preferred_id: int | None) -> ProviderRow:
    usable = [row for row in enabled_rows(session, caller) if _has_adapter(row)]
    if not usable:
        raise InvalidInput(
            "connect a model: add a provider with its address and key (POST /providers), "
            "or ask an administrator to share one",
            kind="no_provider",
        )
    preferences: tuple[Callable[[ProviderRow], bool], ...] = (
        lambda row: row.id == preferred_id,
        lambda row: row.user_id == caller.user_id and row.is_default,
        lambda row: row.is_shared and row.is_default,
        lambda row: row.user_id == caller.user_id,
    )
    for is_preferred in preferences:
        found = next(filter(is_preferred, usable), None)
        if found is not None:
            return found
    return usable[0]


def _has_adapter(row: ProviderRow) -> bool:
    try:
        adapter_for(row.provider_type)
    except InvalidInput:
        return False
    return True
