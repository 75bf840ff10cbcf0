"""The row of the sandbox: what a sandbox adds to a program, and how fast a prewarmed one answers."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.sandbox.plan import ProgramLimits
from luxx.tools.sandbox.resident import PrewarmedKey
from luxx.tools.sandbox.service import Sandbox
from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.upstream import Upstream

TIMES = 15
NOTHING = ("-I", "-S", "-c", "pass")
PRINTS = b"print(1)"
READY_SECONDS = 0.3
"""How long a process has been prewarmed before it is used, so that its start is not measured."""


async def sandbox_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """`python -c pass` bare and in a sandbox, alternately; and a prewarmed process, to its first output."""
    with tempfile.TemporaryDirectory(prefix="luxx-bench-sandbox-") as folder:
        workspace = Path(folder) / "workspaces" / "1"
        workspace.mkdir(parents=True)
        sandbox = Sandbox(ToolsConfig(), Path(folder) / "data", workspace.parent)
        await sandbox.open()
        try:
            for _ in range(rounds):
                await _measure(sandbox, workspace, figures)
                yield
        finally:
            await sandbox.close()


async def _measure(sandbox: Sandbox, workspace: Path, figures: Figures) -> None:
    interpreter = sandbox.interpreter
    if interpreter is None or sandbox.backend_name == "none":
        raise Broken("there is no sandbox here; `luxx doctor` says why")
    argv, limits = (interpreter.program, *NOTHING), ProgramLimits()

    async def bare() -> None:
        process = await asyncio.create_subprocess_exec(*argv)
        if await process.wait():
            raise Broken("python -c pass failed")

    async def sandboxed() -> None:
        ran = await sandbox.run_sandboxed(argv, workspace, limits)
        if ran.exit_code:
            raise Broken(f"python -c pass failed in the sandbox: {ran.stderr!r}")

    bares: list[float] = []
    processes: list[float] = []
    for _ in range(TIMES):
        bares.append(await _timed(bare))
        processes.append(await _timed(sandboxed))
    waited = [
        await _first_output(sandbox, PrewarmedKey(workspace=workspace, limits=limits)) for _ in range(TIMES)
    ]
    name = sandbox.backend_name
    figures.add("sandbox", "python -c pass, bare", statistics.median(bares) * 1e3, "ms")
    added = statistics.median(processes) - statistics.median(bares)
    figures.add("sandbox", f"… what {name} adds", added * 1e3, "ms", at_most=110)
    figures.add("sandbox", "prewarmed, to first output", statistics.median(waited) * 1e3, "ms", at_most=5)


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _first_output(sandbox: Sandbox, slot_key: PrewarmedKey) -> float:
    sandbox_process = await sandbox.start_prewarmed(slot_key)
    await asyncio.sleep(READY_SECONDS)
    first_outputs: list[float] = []
    began = time.perf_counter()
    ran = await sandbox_process.run(
        PRINTS, slot_key.limits, lambda *_: first_outputs.append(time.perf_counter())
    )
    if ran.stdout != b"1\n":
        raise Broken(f"a prewarmed process printed {ran.stdout!r}, {ran.stderr!r}")
    return first_outputs[0] - began
