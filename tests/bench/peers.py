"""Peers: other relays, and other libraries for discussions and graphs of agents, to compare with.

FastAPI with the openai SDK is in the development extra; nginx, LiteLLM, AutoGen and LangGraph are used if
installed. `PEERS=1` installs the last three, each in an environment of its own.
"""

import contextlib
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.bench.processes import ROOT, free_port

PEERS_FOLDER = ROOT / "bench-results" / "peers"
PEER_PACKAGES = {
    "litellm": ("litellm[proxy]",),
    "autogen": ("autogen-agentchat", "autogen-ext[openai]"),
    "langgraph": ("langgraph", "langgraph-checkpoint-sqlite", "langchain-openai"),
}
INSTALLED = "installed"
"""A file in the environment of a peer: all its packages were installed."""

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream model {{ server 127.0.0.1:{upstream_port}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""

LITELLM = """
model_list:
  - model_name: bench-model
    litellm_params:
      model: openai/bench-model
      api_base: http://127.0.0.1:{upstream_port}/v1
      api_key: none
"""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The command that starts one."""

    name: str
    port: int
    command: list[str]
    environ: dict[str, str]
    headers: bytes = b""


def installed_peers(stack: contextlib.ExitStack, upstream_port: int) -> Iterator[Peer]:
    """The peers of this machine, ready to start; their folders exist as long as `stack`."""
    if importlib.util.find_spec("fastapi") and importlib.util.find_spec("openai"):
        yield _fastapi(upstream_port)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-peers-")))
    if nginx := shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin"):
        yield _nginx(nginx, folder, upstream_port)
    if litellm := _litellm_command():
        yield _litellm(litellm, folder, upstream_port)


def install_peers() -> None:
    """Installs the peers outside the project's environment. Prints a message for each that it cannot."""
    for name, packages in PEER_PACKAGES.items():
        if peer_python(name) is not None:
            continue
        folder = PEERS_FOLDER / name
        venv.create(folder, with_pip=True)
        pip = subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages], check=False)
        if pip.returncode == 0:
            (folder / INSTALLED).touch()
        else:
            print(f"{name} could not be installed; it is left out.", file=sys.stderr)


def peer_python(name: str) -> Path | None:
    """The Python of a peer's environment; None if it is not installed."""
    folder = PEERS_FOLDER / name
    return folder / "bin" / "python" if (folder / INSTALLED).exists() else None


def _litellm_command() -> str | None:
    python = peer_python("litellm")
    return None if python is None else str(python.parent / "litellm")


def _fastapi(upstream_port: int) -> Peer:
    port = free_port()
    command = [
        sys.executable, "-m", "uvicorn", "tests.bench.peer_fastapi:app", "--port", str(port),
        "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip
    environ = {**os.environ, "UPSTREAM": f"http://127.0.0.1:{upstream_port}/v1"}
    return Peer(name="fastapi", port=port, command=command, environ=environ)


def _nginx(nginx: str, folder: Path, upstream_port: int) -> Peer:
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, upstream_port=upstream_port))
    command = [nginx, "-p", str(folder), "-c", str(config)]
    return Peer(name="nginx", port=port, command=command, environ=dict(os.environ))


def _litellm(litellm: str, folder: Path, upstream_port: int) -> Peer:
    port = free_port()
    config = folder / "litellm.yaml"
    config.write_text(LITELLM.format(upstream_port=upstream_port))
    command = [litellm, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    # It does not start without a key of its own, and would fetch its price list from the network.
    key = f"sk-{secrets.token_hex(16)}"
    environ = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    headers = f"authorization: Bearer {key}\r\n".encode()
    return Peer(name="litellm", port=port, command=command, environ=environ, headers=headers)
