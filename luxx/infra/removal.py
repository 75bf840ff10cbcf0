"""Deletes a directory with untrusted content: of any depth, with few descriptors, without following links.

Imports only modules of the standard library that load fast: sandbox supervisors import this module too.
"""

import os

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> bool:
    """Deletes `path`; True if nothing is left. Moves the content of subdirectories up, not to descend."""
    try:
        fd = _open_directory(path, None)
    except OSError:
        return False
    try:
        while names := os.listdir(fd):
            if not sum(_makes_progress(name, fd) for name in names):
                return False
        os.rmdir(path)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _makes_progress(name: str, fd: int) -> bool:
    """Whether it deleted the entry `name` of `fd`, or deleted or moved up some of its content."""
    try:
        os.unlink(name, dir_fd=fd)
        return True
    except OSError:
        pass
    try:
        inner = _open_directory(name, fd)
    except OSError:
        return False
    try:
        moved_up = sum(_is_moved_up(name, inner, fd) for name in os.listdir(inner))
        return _is_removed(name, fd) or moved_up > 0
    except OSError:
        return False
    finally:
        os.close(inner)


def _is_moved_up(name: str, inner: int, fd: int) -> bool:
    """Deletes a file, or moves a directory from `inner` to `fd` under a random name that is not taken."""
    try:
        os.unlink(name, dir_fd=inner)
        return True
    except OSError:
        pass
    try:
        # Opening makes the directory writable, which a move requires.
        os.close(_open_directory(name, inner))
        os.rename(name, f".{os.urandom(16).hex()}", src_dir_fd=inner, dst_dir_fd=fd)
        return True
    except OSError:
        return False


def _is_removed(name: str, fd: int) -> bool:
    try:
        os.rmdir(name, dir_fd=fd)
        return True
    except OSError:
        return False


def _open_directory(name: str, dir_fd: int | None) -> int:
    """Opens the directory and makes it readable and writable for its owner. Raises OSError."""
    path_fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        if os.fstat(path_fd).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{path_fd}", 0o700)
        return os.open(".", _DIRECTORY, dir_fd=path_fd)
    finally:
        os.close(path_fd)
