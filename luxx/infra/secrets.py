"""The server's secret key, the keys derived from it, and the encryption of stored secrets.

HKDF derives every key from `app.secret_key` with a separate purpose: the secret may be any text of 32 bytes
or more, and a key for one purpose does not work for another.
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
SECRET_FILE = "secret_key"
FORMAT = "v1"
NONCE_BYTES = 12
MASK_VISIBLE_CHARS = 4
MASK_MIN_LENGTH = 12
"""`mask` shows no characters of shorter secrets: four would be too large a part."""


def find_secret(configured: str, data_dir: Path, *, is_shared: bool) -> str:
    """The configured secret, else the one in the data directory, which the first start creates.

    `is_shared`: several machines may use the database, so the secret must be configured. Raises ConfigError
    if it is missing, too short or cannot be stored.
    """
    if configured:
        return _check_length(configured, "app.secret_key")
    if is_shared:
        raise ConfigError(
            "app.secret_key: with PostgreSQL it must be set, to the same value on every server; "
            "create one with `openssl rand -hex 32` and put it into APP_SECRET_KEY"
        )
    path = data_dir / SECRET_FILE
    try:
        if not path.exists():
            _create_secret_file(path)
        with contextlib.suppress(PermissionError):
            path.chmod(0o600)
        return _check_length(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the secret key cannot be stored there: {error}") from error


def _check_length(secret: str, where: str) -> str:
    if is_too_short(secret):
        raise ConfigError(
            f"{where}: a secret key needs at least {MIN_SECRET_BYTES} bytes, this one has "
            f"{len(secret.encode())}; create one with `openssl rand -hex 32`, and to keep reading secrets "
            "encrypted with the old one, add the old one to app.previous_secret_keys"
        )
    return secret


def is_too_short(secret: str) -> bool:
    """Whether the secret has fewer than MIN_SECRET_BYTES bytes."""
    return len(secret.encode()) < MIN_SECRET_BYTES


def _create_secret_file(path: Path) -> None:
    """Writes a temporary file and links it: the first process wins and none reads a partial file."""
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
    """A key of 32 bytes. The same secret and purpose give the same key on every server."""
    return HKDF(SHA256(), 32, salt=None, info=f"luxx {purpose}".encode()).derive(secret.encode())


def mask(plain: str) -> str:
    """Stars and the last four characters of a secret, or only stars if it is short."""
    return "****" + (plain[-MASK_VISIBLE_CHARS:] if len(plain) >= MASK_MIN_LENGTH else "")


class Vault:
    """Encrypts text with AES-256-GCM. `previous`: older secrets, for decryption only."""

    def __init__(self, secret: str, *, previous: Sequence[str] = ()) -> None:
        self._key_id = _key_id(secret)
        self._ciphers = {_key_id(key): AESGCM(derive_key(key, "vault")) for key in (*previous, secret)}

    def seal(self, plain: str, *, identity: str) -> str:
        """Encrypts `plain`. `open` requires the same `identity`, such as `llm_providers:7:api_key`."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[self._key_id].encrypt(
            nonce, plain.encode(), _associated_data(self._key_id, identity)
        )
        return f"{FORMAT}.{self._key_id}.{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, *, identity: str) -> str:
        """Decrypts a sealed text. Raises Unavailable if the key is missing, the text or `identity` wrong."""
        version, _, rest = sealed.partition(".")
        key_id, _, body = rest.partition(".")
        cipher = self._ciphers.get(key_id)
        if version == FORMAT and key_id and cipher is None:
            raise Unavailable(
                "this secret was encrypted with another app.secret_key; set that key again or enter the "
                "secret again",
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
                "a stored secret is damaged or belongs to another row; enter it again", kind="secret_damaged"
            ) from error

    def has_key_for(self, sealed: str) -> bool:
        """Whether it was sealed with the current secret or a previous one."""
        _, _, rest = sealed.partition(".")
        return rest.partition(".")[0] in self._ciphers

    def needs_resealing(self, sealed: str) -> bool:
        """Whether it was sealed with a previous secret, so the caller should open and seal it again."""
        return not sealed.startswith(f"{FORMAT}.{self._key_id}.")


def _key_id(secret: str) -> str:
    return hashlib.sha256(derive_key(secret, "vault key id")).hexdigest()[:8]


def _associated_data(key_id: str, identity: str) -> bytes:
    return f"{FORMAT}.{key_id}.{identity}".encode()
