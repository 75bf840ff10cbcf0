"""The main program of Python in the sandbox: reads code from standard input, runs it, saves its figures.

The server passes this file's text to the sandbox's interpreter, so it imports only the standard library.
"""

import linecache
import os
import site
import sys
import time
import traceback
import types
import warnings
from typing import Any

NAME = "main.py"
FIGURES = "figures"


def main() -> int:
    """Run the code as `__main__`; returns the exit code."""
    # Last: a file of the workspace must not replace an installed package.
    sys.path.extend([*(path for path in sys.argv[1:] if path), os.getcwd()])
    site.setquit()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    dev_null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(dev_null, 0)
    os.close(dev_null)
    sys.argv = [NAME]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    linecache.cache[NAME] = (len(text), None, text.splitlines(keepends=True), NAME)
    warnings.filterwarnings("ignore", message=".*non-interactive.*")
    try:
        return _run(text, vars(module))
    finally:
        _keep_figures()


def _run(text: str, names: dict[str, Any]) -> int:
    try:
        exec(compile(text, NAME, "exec", dont_inherit=True), names)
    except SystemExit:
        raise
    except BaseException as error:
        # Skip the frames of this file.
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != NAME:
            frame = frame.tb_next
        traceback.print_exception(type(error), error, frame)
        return 1
    return 0


def _keep_figures() -> None:
    """Save the open matplotlib figures under unused names."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for count, number in enumerate(pyplot.get_fignums(), 1):
        os.makedirs(FIGURES, exist_ok=True)
        name = f"{FIGURES}/figure-{stamp}-{count}.png"
        suffix = 1
        while os.path.exists(name):
            suffix += 1
            name = f"{FIGURES}/figure-{stamp}-{count}-{suffix}.png"
        pyplot.figure(number).savefig(name)


if __name__ == "__main__":
    sys.exit(main())
