"""The server's secret: where it comes from, the keys derived from it, and secrets sealed with them.

Nothing here knows what is sealed. Every key is derived from `app.secret_key` by HKDF with a purpose of its
own, so the secret may be any text of 32 bytes or more and no key can stand in for another.
"""

import base64
import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from luxx.errors import ConfigError, Unavailable

MIN_SECRET_BYTES = 32
"""Bytes."""
SECRET_FILE = "secret_key"
FORMAT = "v1"
NONCE_BYTES = 12
MASK_VISIBLE_CHARS = 4
MASK_MIN_LENGTH = 12
"""A secret shorter than this shows nothing: four characters would be too much of it."""


def find_secret(configured: str, data_dir: Path, *, is_shared: bool) -> str:
    """The configured secret, else the one in the data directory, made there at the first start.

    `is_shared` says that other processes on other machines use the same database: then the secret must be
    configured. Raises ConfigError where it is missing, too short or cannot be stored.
    """
    if configured:
        return _check_length(configured, "app.secret_key")
    if is_shared:
        raise ConfigError(
            "app.secret_key: PostgreSQL needs it set, and the same on every server; "
            "make one with `openssl rand -hex 32` and put it into APP_SECRET_KEY"
        )
    path = data_dir / SECRET_FILE
    try:
        if not path.exists():
            _create_secret_file(path)
        with contextlib.suppress(PermissionError):
            path.chmod(0o600)
        return _check_length(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the secret key cannot be kept there: {error}") from error


def _check_length(secret: str, where: str) -> str:
    if is_too_short(secret):
        raise ConfigError(
            f"{where}: a secret key needs at least {MIN_SECRET_BYTES} bytes, this one has "
            f"{len(secret.encode())}; make one with `openssl rand -hex 32`, and to keep what the old one "
            "sealed, list that in app.previous_secret_keys"
        )
    return secret


def is_too_short(secret: str) -> bool:
    """Whether it could be guessed."""
    return len(secret.encode()) < MIN_SECRET_BYTES


def _create_secret_file(path: Path) -> None:
    """Written whole under a name of its own, then linked: whoever links first wins and nobody reads half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{SECRET_FILE}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(48))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()


def derive_key(secret: str, purpose: str) -> bytes:
    """32 bytes for one purpose; the same secret and purpose give the same key on every server."""
    return HKDF(SHA256(), 32, salt=None, info=f"luxx {purpose}".encode()).derive(secret.encode())


def mask(plain: str) -> str:
    """What may be shown of a secret: stars and its last four characters, or stars alone if it is short."""
    return "****" + (plain[-MASK_VISIBLE_CHARS:] if len(plain) >= MASK_MIN_LENGTH else "")


class Vault:
    """Seals text with AES-256-GCM. `previous` are secrets that still open what was sealed before a change."""

    def __init__(self, secret: str, *, previous: Sequence[str] = ()) -> None:
        self._key_id = _key_id(secret)
        self._ciphers = {_key_id(each): AESGCM(derive_key(each, "vault")) for each in (*previous, secret)}

    def seal(self, plain: str, *, identity: str) -> str:
        """`plain` bound to `identity`, such as `llm_providers:7:api_key`: opened elsewhere, it fails."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[self._key_id].encrypt(
            nonce, plain.encode(), _associated_data(self._key_id, identity)
        )
        return f"{FORMAT}.{self._key_id}.{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, *, identity: str) -> str:
        """The text that was sealed for this identity. Raises Unavailable if the key or the text is not it."""
        version, _, rest = sealed.partition(".")
        key_id, _, body = rest.partition(".")
        cipher = self._ciphers.get(key_id)
        if version == FORMAT and key_id and cipher is None:
            raise Unavailable(
                "this secret was sealed with another app.secret_key; set that key again or enter it anew",
                kind="sealed_with_another_key",
            )
        try:
            if version != FORMAT or cipher is None:
                raise ValueError("not a sealed secret")
            raw = base64.b64decode(body, altchars=b"-_", validate=True)
            return cipher.decrypt(
                raw[:NONCE_BYTES], raw[NONCE_BYTES:], _associated_data(key_id, identity)
            ).decode()
        except (InvalidTag, ValueError) as error:
            raise Unavailable(
                "a stored secret is damaged or belongs to another row; enter it anew", kind="secret_damaged"
            ) from error

    def has_key_for(self, sealed: str) -> bool:
        """Whether it was sealed with the secret or with a previous one."""
        _, _, rest = sealed.partition(".")
        return rest.partition(".")[0] in self._ciphers

    def needs_resealing(self, sealed: str) -> bool:
        """Whether it was sealed with a previous secret; then open it and seal it again."""
        return not sealed.startswith(f"{FORMAT}.{self._key_id}.")


def _key_id(secret: str) -> str:
    return hashlib.sha256(derive_key(secret, "vault key id")).hexdigest()[:8]


def _associated_data(key_id: str, identity: str) -> bytes:
    return f"{FORMAT}.{key_id}.{identity}".encode()
