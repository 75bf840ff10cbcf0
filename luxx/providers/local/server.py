"""The embedded model's own process: llama.cpp's server from `xllamacpp`, nothing of Luxx.

Started by path from `local.py`. The first line of stdin is a JSON object with its settings (among them
the key that requests must carry, which so appears in no command line); after that stdin stays open as
long as the parent lives, and its end is ours. One line of JSON on stdout says where it listens or why not.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
from typing import Any

PR_SET_PDEATHSIG = 1
QUIET = 2
"""llama.cpp's verbosity: errors and warnings. The next level writes several lines for each request."""


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    _exit_with_parent(int(settings["parent"]))
    threading.Thread(target=_exit_when_stdin_closes, daemon=True).start()
    # What the library prints goes into the log; stdout is kept for the one line of ours.
    report = os.dup(1)
    os.dup2(2, 1)
    try:
        server = _serve(settings)
    except Exception as error:
        _write_report(report, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    _write_report(report, {"address": server.listening_address})
    threading.Event().wait()


def _serve(settings: dict[str, Any]) -> Any:
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["api_key"]]
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = QUIET
    params.n_ctx = settings["context"]
    params.n_parallel = settings["parallel"]
    params.kv_unified = True
    params.cache_ram_mib = settings["cache_mib"]
    params.n_threads_http = settings["parallel"] + 2
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = settings["threads"]
        cpu.poll = 0
    return xllamacpp.Server(params)


def _exit_with_parent(parent: int) -> None:
    """Linux kills us when the parent is gone, even by kill -9; elsewhere the end of stdin must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(0)


def _exit_when_stdin_closes() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def _write_report(descriptor: int, message: dict[str, str]) -> None:
    os.write(descriptor, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
