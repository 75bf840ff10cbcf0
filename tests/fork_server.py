"""Imports Luxx once and forks for each command, which so starts in a third of the time. Run by
`forked_luxx.py`, which has the other end of the socket on descriptor 0.

A request is one JSON message with descriptors: one for the pid and the exit status of the command, its
standard streams, then those that it inherits under the numbers of `inherited`.
"""

import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

MESSAGE_BYTES = 1 << 20
MAX_DESCRIPTORS = 64
AT_START = (
    "anyio._backends._asyncio",
    "encodings.idna",
    "litestar._kwargs",
    "litestar.exceptions.responses",
    "litestar.middleware._internal.exceptions",
    "litestar.middleware.allowed_hosts",
    "litestar.middleware.csrf",
    "litestar.middleware.response_cache",
    "litestar.plugins.attrs",
    "uvicorn.lifespan.off",
    "uvicorn.loops.auto",
)
"""What a server imports only while it starts."""

LEAST_COST = 4
"""Of bcrypt, less than a configuration may say: the hash of a password takes a millisecond instead of 60."""

NUMBER = struct.Struct("=i")


def lower_password_cost() -> None:
    """From now on this process hashes passwords with `LEAST_COST`, whatever is configured."""
    bcrypt = importlib.import_module("bcrypt")
    new_salt = bcrypt.gensalt
    bcrypt.gensalt = lambda _cost: new_salt(LEAST_COST)


class NoServices:
    """In place of the services of a server, while its routes are read and nothing is served."""

    def __init__(self, config: object) -> None:
        self.config = config

    def __getattr__(self, name: str) -> Self:
        return self

    def service_state(self) -> object:
        return self


def remember_signatures() -> None:
    """Reads the signatures of all handlers once; a server takes a third of its CPU time for them."""
    model, signature = (
        importlib.import_module(name) for name in ("litestar._signature.model", "litestar.utils.signature")
    )
    make, read = model.SignatureModel.create, signature.ParsedSignature.from_fn
    signatures: dict[object, object] = {}
    models: dict[object, object] = {}

    def from_fn(fn: Any, namespace: object) -> object:
        # A dependency is another function in each process, with the same code.
        key = getattr(fn, "__code__", fn)
        if key not in signatures:
            signatures[key] = read(fn, namespace)
        return signatures[key]

    def create(*, dependency_name_set: set[str], fn: Any, **more: object) -> object:
        key = (getattr(fn, "__code__", fn), frozenset(dependency_name_set))
        if key not in models:
            models[key] = make(dependency_name_set=dependency_name_set, fn=fn, **more)
        return models[key]

    signature.ParsedSignature.from_fn = from_fn
    model.SignatureModel.create = create
    config = importlib.import_module("luxx.infra.config.schema").Config()
    importlib.import_module("luxx.app.application").create_app(NoServices(config))


def serve(control: socket.socket) -> None:
    """Returns in each command's process; ends this one with its client."""
    # The kernel reaps the monitors.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(control, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            raise SystemExit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A shell that starts the tests in the background lets them ignore it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            control.close()
            _monitor(json.loads(message), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _monitor(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Reports the pid and the exit status of the command; returns in the command's process."""
    status, *rest = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(request, rest)
        return
    for descriptor in (0, 1, 2, *rest):
        os.close(descriptor)
    os.write(status, NUMBER.pack(pid))
    _pid, code = os.waitpid(pid, 0)
    os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(code)))
    os._exit(0)


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Takes on the directory, environment, arguments and descriptors of the request."""
    targets = [0, 1, 2, *request["inherited"]]
    # Above all targets first, so that none is overwritten before it is copied.
    above = max(*targets, *descriptors) + 1
    copies = []
    for number, descriptor in enumerate(descriptors):
        copies.append(above + number)
        os.dup2(descriptor, above + number)
    for copy, target in zip(copies, targets, strict=True):
        os.dup2(copy, target)
    kept = set(targets)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # The listing itself had one.
                os.close(int(name))
    if request["has_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [entry for entry in added if entry not in sys.path]
    sys.argv = ["luxx", *request["arguments"]]


if __name__ == "__main__":
    from luxx.app.cli.commands import load_all
    from luxx.app.entry import main

    load_all()
    for name in AT_START:
        importlib.import_module(name)
    lower_password_cost()
    remember_signatures()
    # A server collects once when it is open: only what it has made itself.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as control:
        serve(control)
    raise SystemExit(main())
