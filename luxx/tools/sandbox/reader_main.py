"""The main program of a document reader in the sandbox: loads the reader, then waits for the document.

The server passes this file's text to the interpreter, so it imports only the standard library at first. The
first line of standard input has the reader's arguments, the rest is the document.
"""

import importlib
import importlib.util
import sys

PACKAGE = "luxx"


def main() -> None:
    """Arguments: the module to run, the directory of Luxx, the directories of other packages."""
    module, package, *others = sys.argv[1:]
    sys.path.extend(others)
    # Not through sys.path: the parent directory is hidden, because it may hold the configuration.
    spec = importlib.util.spec_from_file_location(
        PACKAGE, f"{package}/__init__.py", submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    package_module = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package_module)
    read = importlib.import_module(module).main
    sys.argv[1:] = sys.stdin.buffer.readline().decode().split()
    read()


if __name__ == "__main__":
    main()
