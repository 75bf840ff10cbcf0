"""`luxx serve` that records the functions of `luxx/` it calls: SIGUSR1 starts recording, a second
one writes it.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

import luxx
from luxx.app.entry import main

PACKAGE = str(Path(luxx.__file__).parent) + os.sep
OUTPUT = Path(os.environ["MESSAGE_PATH_OUTPUT"])
recorded: set[CodeType] = set()
is_recording = False


def record(frame: FrameType, event: str, _argument: Any) -> None:
    if is_recording and event == "call":
        recorded.add(frame.f_code)


def switch(_number: int, _frame: FrameType | None) -> None:
    global is_recording
    is_recording = not is_recording
    if is_recording:
        recorded.clear()
        return
    calls = sorted(
        {
            (code.co_filename.removeprefix(PACKAGE), f"{code.co_qualname}:{code.co_firstlineno}")
            for code in recorded
            if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")
        }
    )
    draft = OUTPUT.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(calls))
    draft.rename(OUTPUT)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, switch)
    threading.setprofile(record)
    sys.setprofile(record)
    sys.exit(main(["serve", *sys.argv[1:]]))
