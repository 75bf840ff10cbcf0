"""The keys of providers in their rows: sealed, masked, and changed together with their address."""

from msgspec import UNSET

from luxx.errors import InvalidInput, Unavailable
from luxx.infra.secrets import Vault, mask
from luxx.providers.models import ProviderChanges, ProviderRow, validate_api_key


def key_identity(provider_id: int) -> str:
    """The identity that a provider's encrypted key is bound to."""
    return f"llm_providers:{provider_id}:api_key"


def store_key(vault: Vault, row: ProviderRow, api_key: str) -> None:
    """Encrypts the key into a row that has its id; an empty key removes the stored one."""
    row.api_key = vault.seal(api_key, identity=key_identity(row.id)) if api_key else ""


def read_key(vault: Vault, row: ProviderRow) -> str:
    """The decrypted key, empty if there is none. Raises Unavailable if it cannot be decrypted."""
    return vault.open(row.api_key, identity=key_identity(row.id)) if row.api_key else ""


def masked_key(vault: Vault, row: ProviderRow) -> str:
    try:
        return mask(read_key(vault, row)) if row.api_key else ""
    except Unavailable:
        return mask("")


def change_key(vault: Vault, row: ProviderRow, changes: ProviderChanges, base_url: str) -> None:
    """Stores a new key. The mask of the stored key, which a form sends back unchanged, is no new key.

    A new address removes the stored key. Raises InvalidInput if the changes name only a new type, whose
    address it is: nobody would expect that the key is removed.
    """
    new_key = changes.api_key
    if new_key is not UNSET and not (new_key and new_key == masked_key(vault, row)):
        store_key(vault, row, validate_api_key(new_key or ""))
        return
    if base_url == row.base_url:
        return
    if row.api_key and changes.base_url is UNSET:
        raise InvalidInput(
            f"the type {changes.provider_type} has another address ({base_url or 'its own'}), to which the "
            f"stored key does not belong; send api_key with a key for it (null for none), or base_url "
            f"{row.base_url} to keep address and key",
            kind="key_would_be_lost",
            field="$.api_key",
        )
    row.api_key = ""
