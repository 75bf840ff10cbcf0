"""Hidden paths stay hidden beneath a directory that programs see, also if a link names the directory."""

import asyncio
import tempfile
from pathlib import Path

from luxx.infra.config.schema import ToolsConfig
from luxx.tools.sandbox.choosing import choose
from luxx.tools.sandbox.plan import Interpreter, ProgramLimits, ProgramSpec
from luxx.tools.sandbox.process import SandboxProcess

READ = "cat shown.txt; cat data/secret.txt; cat luxx.db; ls data"


def read_beneath_shown(shown: Path, backend: str, hidden: tuple[Path, ...]) -> str | None:
    """What a program can read of the directory `shown`, which it sees as the directory of its Python."""

    async def work() -> str | None:
        choice = await choose(ToolsConfig(sandbox=backend), hidden, shown / "none", shown)  # type: ignore[arg-type]
        if choice.backend is None:
            return None
        program_spec = ProgramSpec(
            argv=("/bin/sh", "-c", f"cd {shown}; {READ}"),
            workspace=None,
            limits=ProgramLimits(),
            interpreter=Interpreter(program="/bin/sh", prefixes=(str(shown),)),
        )
        ran = await (await SandboxProcess.start(choice.backend.spec(program_spec))).run(b"", ProgramLimits())
        return ran.stdout.decode()

    return asyncio.run(work())


def test_links_and_files_are_hidden_like_directories(backend: str) -> None:
    with tempfile.TemporaryDirectory(prefix="luxx-shown-") as folder:
        shown, given_path = Path(folder) / "shown", Path(folder) / "link"
        (shown / "data").mkdir(parents=True)
        for path in (Path(folder), shown, shown / "data"):
            path.chmod(0o755)
        for name in ("shown.txt", "data/secret.txt", "luxx.db"):
            (shown / name).write_text(f"read {name}\n")
        given_path.symlink_to(shown / "data")
        assert read_beneath_shown(shown, backend, ()) in (
            None,
            "read shown.txt\nread data/secret.txt\nread luxx.db\nsecret.txt\n",
        )
        said = read_beneath_shown(shown, backend, (given_path, shown / "luxx.db"))
        assert said in (None, "read shown.txt\n", "read shown.txt\nsecret.txt\n")
