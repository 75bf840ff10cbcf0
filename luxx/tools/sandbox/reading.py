"""What Python runs in a sandbox to read one document: it loads a reader, then waits for the document.

Its text is handed to the interpreter, so it imports nothing but the standard library at first. The first line
of its input is the reader's arguments, the rest the document.
"""

import importlib
import importlib.util
import sys

PACKAGE = "luxx"


def main() -> None:
    """The arguments: the module to run, the directory of this package, those of others."""
    module, package, *others = sys.argv[1:]
    sys.path.extend(others)
    # The directory that the package lies in is not shown: the configuration may lie there, too.
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
