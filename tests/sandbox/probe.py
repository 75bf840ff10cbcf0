"""A sandbox in its own process: `python probe.py BACKEND DIRECTORY [TOKEN]` prints what works in it.

With TOKEN it starts programs that have it in their command line and never end.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from client import SandboxClient, processes_with

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.sandbox.service import Sandbox

CAPABILITIES = """
import ctypes
found = (ctypes.c_uint32 * 6)()
ctypes.CDLL(None).capget((ctypes.c_uint32 * 2)(0x20080522, 0), found)
print(sum(found))
"""


async def main(backend: str, root_dir: Path, token: str) -> dict[str, Any]:
    config = ToolsConfig(sandbox=backend)  # type: ignore[arg-type]
    sandbox = Sandbox(config, root_dir / "data", root_dir / "workspaces")
    await sandbox.open()
    client = SandboxClient(sandbox, config, root_dir)
    if token and sandbox.backend_name != "none":
        await client.shell(f"setsid sh -c 'sleep 600; : {token}' & sh -c 'sleep 600; : {token}'")
    able = await client.python(CAPABILITIES)
    executions = [await client.python("print(2 * 3)"), await client.shell("echo $((2 * 3))")]
    await sandbox.close()
    return {
        "in_force": sandbox.backend_name,
        "errors": [executed.result.error for executed in executions],
        "outputs": [(executed.result.data or {}).get("stdout") for executed in executions],
        "capabilities": (able.result.data or {}).get("stdout"),
        "risks": [str(tool.risk) for tool in client.executor.registry.list_all()],
        "untrusted": [executed.is_untrusted for executed in executions],
        "egress": [tool.is_egress for tool in client.executor.registry.list_all()],
        "left": processes_with(f"{root_dir}/workspaces"),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2]), (sys.argv[3:] or [""])[0]))))
