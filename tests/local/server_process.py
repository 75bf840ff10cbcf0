"""A process that runs the embedded model like the server, to be killed by a test.

Arguments: data directory, model file. Prints the child's process id when the model is loaded, or before
that with `early`; then waits.
"""

import asyncio
import sys
from pathlib import Path

from luxx.infra.config.schema import LocalConfig
from luxx.providers.local.model import LocalModel


async def main(data_dir: str, model: str) -> None:
    local = LocalModel(LocalConfig(model_path=model), Path(data_dir))
    local.start()
    if "early" not in sys.argv:
        await local.ensure_ready(60)
    while local.pid is None:  # noqa: ASYNC110  (the model tells when it is ready, not when it is begun)
        await asyncio.sleep(0.01)
    print("child", local.pid, flush=True)
    await asyncio.get_running_loop().create_future()


asyncio.run(main(sys.argv[1], sys.argv[2]))
