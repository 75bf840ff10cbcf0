"""What the processes of tests get: an environment without settings of this machine, free ports, and a
scripted model. `api/server_process.py` starts servers.
"""

import os
import random
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from luxx.providers.scripted import Script, ScriptedProvider

ROOT = Path(__file__).parent.parent
USER_FILES = TemporaryDirectory(prefix="luxx-user-files-")
"""Where commands keep files of their user."""

PORTS = [port for port in range(20_000, 32_000) if "80" not in str(port)]
"""Below the ports that systems choose for outgoing connections, which could take a free one at any moment.
None contains a documented port (8000, 8001, 8099), because tests replace those in scripts."""


def free_port() -> int:
    """A port for a server that cannot be asked which port it has."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def plain_environ(**more: str) -> dict[str, str]:
    """This process's environment without keys, settings, sign-ins and proxies of the machine it runs on, and
    without what `make` passes to a `make` that it calls."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.search(r"_API_KEY$|_BASE_URL$|^LUXX_|_proxy$|_PROXY$|^M?MAKE|^MFLAGS$", name)
    }
    kept |= {"XDG_CONFIG_HOME": USER_FILES.name, "XDG_STATE_HOME": USER_FILES.name}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"} | more


@contextmanager
def scripted_models(script: Script, port: int = 0) -> Iterator[ScriptedProvider]:
    """Serves a script without asking that all of it be used: each test of a module uses its part."""
    provider = ScriptedProvider(script, port=port)
    provider.__enter__()
    try:
        yield provider
    finally:
        provider.__exit__(GeneratorExit, GeneratorExit(), None)
