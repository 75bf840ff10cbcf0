"""The process of the embedded model: llama.cpp's server from `xllamacpp`; it imports nothing of Luxx.

`model.py` starts it by path. The first line of stdin is a JSON object with its settings, including the key
that requests need, so that the key is in no command line. The process exits when stdin closes. It writes one
line of JSON to stdout: its address, or the error.
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
    # The library's output goes to the log (stderr); stdout is only for the report.
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
    # For requests that leave it open: a model this small answers best with its most likely words.
    params.sampling.temp = 0.0
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
    """Makes Linux kill this process when the parent ends, even by SIGKILL. Elsewhere stdin must do."""
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
