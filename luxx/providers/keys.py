"""A change of the server's secret key: checks that it matches the database, re-encrypts provider keys.

`queries.py` stores and reads the keys.
"""

import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from luxx.errors import ConfigError, Unavailable
from luxx.infra.secrets import Vault
from luxx.providers.models import ProviderRow, ServerValueRow
from luxx.providers.queries import key_identity

SECRET_CHECK = "secret_check"
_CHECK_TEXT = "sealed with this server's secret key"

logger = structlog.get_logger()


def secret_key_problem(session: Session, vault: Vault) -> str | None:
    """Why the secret key does not match this database; None if it does."""
    stored = session.get(ServerValueRow, SECRET_CHECK)
    # An old database, and one after `--forget-sealed-keys`, has no check value, only provider keys.
    sealed = _sealed_keys(session) if stored is None else [stored.value]
    if not sealed or any(vault.has_key_for(each) for each in sealed):
        return None
    return (
        "app.secret_key does not match this database, so stored provider keys cannot be decrypted; set the "
        "previous key again, or list it in app.previous_secret_keys to rotate to the new one; if it is lost, "
        "delete the encrypted keys with `luxx migrate --forget-sealed-keys`"
    )


def check_and_reseal_keys(session: Session, vault: Vault) -> None:
    """Checks the secret key and re-encrypts what a previous key encrypted. Raises ConfigError."""
    problem = secret_key_problem(session, vault)
    if problem is not None:
        raise ConfigError(problem)
    stored = session.get(ServerValueRow, SECRET_CHECK)
    if stored is not None and not vault.needs_resealing(stored.value):
        return
    resealed_count = unreadable_count = 0
    for row in session.execute(select(ProviderRow.id, ProviderRow.api_key).where(ProviderRow.api_key != "")):
        identity = key_identity(row.id)
        if not vault.needs_resealing(row.api_key):
            continue
        try:
            resealed = vault.seal(vault.open(row.api_key, identity=identity), identity=identity)
        except Unavailable:
            unreadable_count += 1
            continue
        session.execute(update(ProviderRow).where(ProviderRow.id == row.id).values(api_key=resealed))
        resealed_count += 1
    # Another process may write its own value at the same time, which is equally valid.
    session.merge(ServerValueRow(name=SECRET_CHECK, value=vault.seal(_CHECK_TEXT, identity=SECRET_CHECK)))
    if resealed_count or unreadable_count:
        logger.info("provider_keys_resealed", count=resealed_count, unknown=unreadable_count)


def delete_unreadable_keys(session: Session, vault: Vault) -> int:
    """Deletes the provider keys that the secret key cannot decrypt; returns their number."""
    session.execute(delete(ServerValueRow).where(ServerValueRow.name == SECRET_CHECK))
    unreadable_ids = [
        row.id
        for row in session.execute(
            select(ProviderRow.id, ProviderRow.api_key).where(ProviderRow.api_key != "")
        )
        if not vault.has_key_for(row.api_key)
    ]
    for provider_id in unreadable_ids:
        session.execute(update(ProviderRow).where(ProviderRow.id == provider_id).values(api_key=""))
    return len(unreadable_ids)


def _sealed_keys(session: Session) -> list[str]:
    return list(session.scalars(select(ProviderRow.api_key).where(ProviderRow.api_key != "")))
