"""Where each user's files live: one directory per user below `workspace.root`. Nothing here reads them."""

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
        """The user's workspace, whether it exists or not."""
        return self._root / hashlib.sha256(str(user_id).encode()).hexdigest()

    def prepare(self, user_id: int) -> Path:
        """The user's workspace, made with mode 0700 if it is missing and `workspace.auto_create` is on.

        Raises Unavailable if it is not there and cannot be made, or is not a directory of its own.
        """
        path = self.path_of(user_id)
        try:
            if self._auto_create:
                make_directory(self._root)
                path.mkdir(mode=0o700, exist_ok=True)
            mode = path.lstat().st_mode
        except OSError as error:
            raise Unavailable(
                f"the workspace {path} is not there: {error.strerror}; make it or set workspace.auto_create",
                kind="workspace_missing",
            ) from error
        if not stat.S_ISDIR(mode):
            raise Unavailable(f"the workspace {path} is not a directory of its own", kind="workspace_missing")
        return path

    def prepare_if_enabled(self, user_id: int) -> Path:
        """As `prepare` if workspaces are made automatically, else only the path."""
        return self.prepare(user_id) if self._auto_create else self.path_of(user_id)

    def remove(self, user_id: int) -> None:
        """Deletes the workspace of a user who is gone; what cannot be deleted is named in the log.

        It is renamed first, so that whatever still holds its path finds nothing.
        """
        path = self.path_of(user_id)
        deleted_path = path.with_name(f"{path.name}.deleted")
        try:
            path.rename(deleted_path)
        except FileNotFoundError:
            return
        if not remove_tree(str(deleted_path)):
            logger.warning("workspace_not_deleted", path=str(deleted_path))
