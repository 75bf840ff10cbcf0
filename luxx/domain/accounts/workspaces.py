"""The directory of each user's files, one per user below `workspace.root`. Nothing here reads the files."""

import hashlib
import stat
from pathlib import Path

import structlog

from luxx.errors import Unavailable
from luxx.infra.data_permissions import make_directory
from luxx.infra.removal import remove_tree

logger = structlog.get_logger()


class Workspaces:
    """Paths are `{root}/{sha256 of the user's id}`, relative if the root is."""

    def __init__(self, root: str, *, auto_create: bool = True) -> None:
        self._root = Path(root)
        self._auto_create = auto_create

    def path_of(self, user_id: int) -> Path:
        """The path of the user's workspace; it may not exist."""
        return self._root / hashlib.sha256(str(user_id).encode()).hexdigest()

    def prepare(self, user_id: int) -> Path:
        """The user's workspace; created with mode 0700 if it is missing and `workspace.auto_create` is on.

        Raises Unavailable if it is missing and cannot be created, or is not a directory.
        """
        path = self.path_of(user_id)
        try:
            if self._auto_create:
                make_directory(self._root)
                path.mkdir(mode=0o700, exist_ok=True)
            mode = path.lstat().st_mode
        except OSError as error:
            raise Unavailable(
                f"the workspace {path} is missing: {error.strerror}; create it or set workspace.auto_create",
                kind="workspace_missing",
            ) from error
        if not stat.S_ISDIR(mode):
            raise Unavailable(
                f"the workspace {path} is not a directory (a link is not allowed)", kind="workspace_missing"
            )
        return path

    def prepare_if_enabled(self, user_id: int) -> Path:
        """Like `prepare` if workspaces are created automatically, else only the path."""
        return self.prepare(user_id) if self._auto_create else self.path_of(user_id)

    def remove(self, user_id: int) -> None:
        """Deletes the workspace of a deleted user; logs what cannot be deleted.

        It is renamed first, so that a process that still has its path no longer reaches it.
        """
        path = self.path_of(user_id)
        deleted_path = path.with_name(f"{path.name}.deleted")
        try:
            path.rename(deleted_path)
        except FileNotFoundError:
            return
        if not remove_tree(str(deleted_path)):
            logger.warning("workspace_not_deleted", path=str(deleted_path))
