"""The sandbox's egress in its own process: `python egress_probe.py DIRECTORY` prints whether it works."""

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.network.egress import EgressCaller
from luxx.tools.sandbox.plan import ProgramLimits
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


async def main(root_dir: Path) -> dict[str, Any]:
    listener = socket.create_server(("127.0.0.1", 0))
    entry = f"127.0.0.1:{listener.getsockname()[1]}"
    config = ToolsConfig(sandbox="bubblewrap", network_allow=[entry], web_allow_private=[entry])
    sandbox = Sandbox(config, root_dir / "data", root_dir / "workspaces")
    workspace = root_dir / "workspaces/1"
    workspace.mkdir(parents=True)
    async with await asyncio.start_server(answer, sock=listener):
        await sandbox.open()
        if sandbox.backend_name == "none":
            return {"in_force": "none"}
        egress_session = sandbox.egress.session(EgressCaller(user_id=1))
        urls = [f"http://{entry}/", "http://other.example/"]
        ran = await sandbox.run_python(
            f"URLS = {urls!r}\n{ASKS}", workspace, ProgramLimits(), 20, egress_session
        )
        await sandbox.close()
    return {
        "in_force": sandbox.backend_name,
        "problem": sandbox.egress.problem,
        "said": ran.stdout.decode().split(),
        "errors": ran.stderr.decode(),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
