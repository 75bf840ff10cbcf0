"""`python -m luxx.providers.scripted --script FILE.yaml --port 8099`."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from luxx.errors import InvalidInput
from luxx.providers.scripted.provider import ScriptBroken, ScriptedProvider
from luxx.providers.scripted.script import load_script


def main() -> int:
    """Serves a script file until SIGINT or SIGTERM. Returns 1 if `check` failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m luxx.providers.scripted")
    parser.add_argument("--script", type=Path, required=True, help="a YAML file with `rules:`")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    options = parser.parse_args()
    try:
        script = load_script(options.script)
        asyncio.run(_serve_until_signal(ScriptedProvider(script, host=options.host, port=options.port)))
    except (ScriptBroken, InvalidInput, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _serve_until_signal(provider: ScriptedProvider) -> None:
    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    async with provider:
        print(f"Scripted provider on {provider.url}", flush=True)
        await done.wait()


if __name__ == "__main__":
    sys.exit(main())
