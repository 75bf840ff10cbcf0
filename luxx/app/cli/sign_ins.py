"""The sign-ins that `luxx login` keeps: one for each server, in a file that only this user can read.

`login_commands.py` has the commands, `server_api.py` uses and refreshes what is stored here.
"""

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from luxx.errors import InvalidInput, Unavailable

FILE_NAME = "sign-ins.json"
LOCK_TRIES = 400
LOCK_RETRY_SECONDS = 0.05


class StoredSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """`access_token` is an API key if there is no refresh token."""

    username: str
    access_token: str
    refresh_token: str = ""


class SignInFile(msgspec.Struct, frozen=True, kw_only=True):
    """`servers` by their address."""

    servers: dict[str, StoredSignIn] = {}


def user_directory(variable: str, default: str) -> Path:
    """Luxx's directory for this user below the one that an XDG variable names."""
    base = Path(os.environ.get(variable, ""))
    # XDG demands that a relative path is ignored.
    return (base if base.is_absolute() else Path.home() / default) / "luxx"


class SignInStore:
    """Reads and replaces the file as a whole. Raises InvalidInput for a file that it cannot read."""

    def __init__(self) -> None:
        self.path = user_directory("XDG_CONFIG_HOME", ".config") / FILE_NAME

    def find(self, url: str) -> StoredSignIn | None:
        return self._read().get(url)

    def save(self, url: str, sign_in: StoredSignIn) -> None:
        self._write({**self._read(), url: sign_in})

    def remove(self, url: str) -> None:
        self._write({server: kept for server, kept in self._read().items() if server != url})

    @asynccontextmanager
    async def lock(self) -> AsyncGenerator[None]:
        """Excludes other commands: a refresh token is valid once. Raises Unavailable."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("a") as file:
            for _ in range(LOCK_TRIES):
                if _try_lock(file.fileno()):
                    break
                await asyncio.sleep(LOCK_RETRY_SECONDS)
            else:
                raise Unavailable(f"another command keeps {file.name} locked; try again")
            yield

    def _read(self) -> dict[str, StoredSignIn]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=SignInFile).servers
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise InvalidInput(
                f"{self.path} cannot be read; delete it and sign in again with `luxx login`"
            ) from error

    def _write(self, servers: dict[str, StoredSignIn]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp creates the file with the mode 0600.
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=FILE_NAME)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(SignInFile(servers=servers))))
            Path(name).replace(self.path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
