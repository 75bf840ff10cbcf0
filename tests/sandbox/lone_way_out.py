"""A way out in a process of its own: `python lone_way_out.py HOME` prints whether there is one."""

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.network.egress import Traveller
from luxx.tools.sandbox.plan import Limits
from luxx.tools.sandbox.service import Sandbox

ASKS = """
import os, urllib.error, urllib.request
os.environ.pop("NO_PROXY"), os.environ.pop("no_proxy")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({'http': 'http://127.0.0.1:3128'}))
for url in URLS:
    try:
        print(opener.open(url, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    writer.close()


async def main(home: Path) -> dict[str, Any]:
    listener = socket.create_server(("127.0.0.1", 0))
    entry = f"127.0.0.1:{listener.getsockname()[1]}"
    config = ToolsConfig(sandbox="bubblewrap", network_allow=[entry], web_allow_private=[entry])
    sandbox = Sandbox(config, home / "data", home / "workspaces")
    workspace = home / "workspaces/1"
    workspace.mkdir(parents=True)
    async with await asyncio.start_server(answer, sock=listener):
        await sandbox.open()
        if sandbox.in_force == "none":
            return {"in_force": "none"}
        outing = sandbox.way_out.outing(Traveller(user_id=1))
        urls = [f"http://{entry}/", "http://other.example/"]
        ran = await sandbox.run_python(f"URLS = {urls!r}\n{ASKS}", workspace, Limits(), 20, outing)
        await sandbox.close()
    return {
        "in_force": sandbox.in_force,
        "problem": sandbox.way_out.problem,
        "said": ran.stdout.decode().split(),
        "errors": ran.stderr.decode(),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
