"""What Python runs in a jail: it waits for a program on its standard input, runs that, and keeps its figures.

Its text is handed to the jail's own interpreter, so it imports nothing but the standard library.
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
    """Run what comes as its own `__main__`; the exit code."""
    # Last: a file of the workspace shall not stand in for a package that was installed.
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
        # Without our own frames.
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != NAME:
            frame = frame.tb_next
        traceback.print_exception(type(error), error, frame)
        return 1
    return 0


def _keep_figures() -> None:
    """Save what was drawn and not closed, under names that are free."""
    drawing: Any = sys.modules.get("matplotlib.pyplot")
    if drawing is None:
        return
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for count, number in enumerate(drawing.get_fignums(), 1):
        os.makedirs(FIGURES, exist_ok=True)
        name = f"{FIGURES}/figure-{stamp}-{count}.png"
        again = 1
        while os.path.exists(name):
            again += 1
            name = f"{FIGURES}/figure-{stamp}-{count}-{again}.png"
        drawing.figure(number).savefig(name)


if __name__ == "__main__":
    sys.exit(main())
