"""Hidden paths stay hidden beneath a directory that programs see, also if a link names the directory."""

import asyncio
import tempfile
from pathlib import Path

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.sandbox.choosing import choose
from luxx.tools.sandbox.plan import Interpreter, ProgramLimits, ProgramSpec
from luxx.tools.sandbox.process import SandboxProcess

READ_ALL = "cat shown.txt; cat data/secret.txt; cat luxx.db; ls data"


def read_beneath_shown(shown: Path, backend: str, hidden: tuple[Path, ...]) -> str | None:
    """What a program can read of `shown`, the directory of its Python; None without this backend."""

    async def read() -> str | None:
        choice = await choose(ToolsConfig(sandbox=backend), hidden, shown / "none", shown)  # type: ignore[arg-type]
        if choice.backend is None:
            return None
        program_spec = ProgramSpec(
            argv=("/bin/sh", "-c", f"cd {shown}; {READ_ALL}"),
            workspace=None,
            limits=ProgramLimits(),
            interpreter=Interpreter(program="/bin/sh", prefixes=(str(shown),)),
        )
        process = await SandboxProcess.start(choice.backend.spec(program_spec))
        return (await process.run(b"", ProgramLimits())).stdout.decode()

    return asyncio.run(read())


def test_links_and_files_are_hidden_like_directories(backend: str) -> None:
    with tempfile.TemporaryDirectory(prefix="luxx-shown-") as folder:
        shown, link_to_data = Path(folder) / "shown", Path(folder) / "link"
        (shown / "data").mkdir(parents=True)
        for path in (Path(folder), shown, shown / "data"):
            path.chmod(0o755)
        for name in ("shown.txt", "data/secret.txt", "luxx.db"):
            (shown / name).write_text(f"read {name}\n")
        link_to_data.symlink_to(shown / "data")
        assert read_beneath_shown(shown, backend, ()) in (
            None,
            "read shown.txt\nread data/secret.txt\nread luxx.db\nsecret.txt\n",
        )
        output = read_beneath_shown(shown, backend, (link_to_data, shown / "luxx.db"))
        assert output in (None, "read shown.txt\n", "read shown.txt\nsecret.txt\n")
