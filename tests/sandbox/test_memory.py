"""Memory of the kernel, of the machine and of one user's programs together; what programs can still do."""

import asyncio
import json

import pytest

from luxx.tools.sandbox.process import ExceededLimit
from sandbox.client import OpenSandboxClient, SandboxClient

HONEST = """
set -e
mkdir tree; for n in 1 2 3; do seq 20000 > tree/$n; done; chmod 600 tree/1; ln -s 1 tree/link
cp -a tree copy; tar cf tree.tar tree; mkdir out; tar xf tree.tar -C out
cat copy/* | sort -n | uniq | tail -n 1; cmp tree/2 out/tree/2; test -L copy/link
"""
MANY_PIPES = """
import os, subprocess, sys
held = [os.pipe() for _ in range(50)]
for _, end in held: os.write(end, bytes(65536))
done = subprocess.run(['sh', '-c', 'seq 200000 | sort -n | wc -l'], capture_output=True, text=True)
print(done.stdout.strip(), sum(len(os.read(ours, 65536)) for ours, _ in held))
"""
LOCAL_SERVER = """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
open('big', 'wb').write(bytes(20 << 20))
url = f'http://127.0.0.1:{server.server_address[1]}/big'
found = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=20).read()
print(len(found) >> 20)
"""
FOLLOWED = """
touch log; tail -f log > seen 2> complaint & echo hello >> log
until grep -q hello seen && grep -q "cannot be used" complaint; do sleep 0.1; done; cat seen complaint
"""
WAITS = "touch here-{name}; until test -e here-{other}; do sleep 0.05; done; echo met"


async def test_ordinary_programs_can_copy_pack_pipe_and_follow(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        executed = await client.shell(HONEST)
        assert (executed.result.success, executed.result.data["stdout"]) == (True, "20000\n"), executed.result
        piped = await client.python(MANY_PIPES)
        assert piped.result.data["stdout"] == f"200000 {50 * 65536}\n", piped.result
        followed = await client.shell(FOLLOWED)
        output = followed.result.data["stdout"]
        assert output.startswith("hello\n"), followed.result
        assert "inotify cannot be used" in output


async def test_the_limit_of_open_files_can_be_configured(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(
        backend, limits=[{"tool": "shell_execute", "level": 3, "open_files": 256}]
    ) as client:
        if client is None:
            return
        assert (await client.shell("ulimit -n")).result.data["stdout"] == "256\n"
        assert (await client.shell("ulimit -n", level=4)).result.data["stdout"] == "1024\n"


async def test_a_program_with_its_own_network_can_serve_itself(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    async with open_sandbox_client("bubblewrap") as client:
        if client is None:
            return
        executed = await client.python(LOCAL_SERVER)
        assert executed.result.data["stdout"] == "20\n", executed.result


async def test_a_program_that_reads_its_input_gets_end_of_file(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    kind = "import os, stat, sys; print(repr(sys.stdin.read()), stat.S_ISCHR(os.fstat(0).st_mode))"

    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        executed = await client.shell(f'cat; read line; python3 -c "{kind}"', timeout=30)
        assert executed.result.data["stdout"] == "'' True\n", executed.result
        assert (await client.python(kind)).result.data["stdout"] == "'' True\n"


async def test_the_home_directory_is_private_and_emptied_after_the_program(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        executed = await client.shell(
            'mkdir -p ~/.cache && echo kept > ~/.cache/x && cat ~/.cache/x && cd && ls "$PWD"'
        )
        assert executed.result.success, executed.result
        assert executed.result.data["stdout"] == "kept\n"
        assert executed.result.data["files"]["created"] == []
        listed = await client.shell('ls -A ~; test ~ != "$PWD" && test ~ = "$TMPDIR"')
        assert (listed.result.success, listed.result.data["stdout"]) == (True, ""), listed.result


async def test_an_installed_package_is_imported_before_a_file_of_the_workspace(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    async with open_sandbox_client("bubblewrap") as client:
        if client is None:
            return
        package = client.root_dir / "data/packages/drawing.py"
        package.parent.mkdir(parents=True)
        package.write_text("whose = 'installed'")
        (client.root_dir / "data").chmod(0o755)
        for name in ("drawing", "own"):
            (client.workspace() / f"{name}.py").write_text("whose = 'workspace'")
        executed = await client.python("import drawing, own\nprint(drawing.whose, own.whose)")
        assert executed.result.data["stdout"] == "installed workspace\n", executed.result


async def test_programs_end_when_the_machine_has_less_left_than_its_reserve(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend, memory_reserve_mb=10**9) as client:
        if client is None:
            return
        ended = await client.shell("sleep 30")
        assert ended.result.data["limit"] == ExceededLimit.MACHINE_MEMORY, ended.result
        assert ended.result.error == (
            "the program was ended: the machine had too little memory left; try again later"
        )
    async with open_sandbox_client(backend, memory_reserve_mb=1) as control:
        assert control is not None
        assert (await control.shell("sleep 0.5")).result.success


@pytest.mark.heavy
async def test_programs_of_one_user_share_a_bound_on_memory(open_sandbox_client: OpenSandboxClient) -> None:
    async def pair(client: SandboxClient, users: tuple[int, int]) -> list[str | None]:
        both = (
            client.shell(WAITS.format(name=name, other=other), user_id=user, timeout=5)
            for user, name, other in zip(users, "ab", "ba", strict=True)
        )
        return [executed.result.data["limit"] for executed in await asyncio.gather(*both)]

    async with open_sandbox_client(memory_per_user_mb=600, prewarmed=0) as bounded:
        if bounded is None:
            return
        # Each program waits for the other, the first only until its time limit.
        assert sorted(map(str, await pair(bounded, (1, 1)))) == ["None", "time"]
        began = asyncio.create_task(bounded.shell("sleep 5; echo slow", user_id=2))
        other = await bounded.shell("echo quick", user_id=3)
        assert other.result.data["stdout"] == "quick\n"
        assert not began.done()
        await began
    async with open_sandbox_client(memory_per_user_mb=1024, prewarmed=0) as roomy:
        assert roomy is not None
        assert await pair(roomy, (1, 1)) == [None, None]


async def test_a_cancelled_wait_for_memory_leaves_it_to_the_next(
    open_sandbox_client: OpenSandboxClient,
) -> None:
    async with open_sandbox_client(memory_per_user_mb=1) as client:
        if client is None:
            return
        first = asyncio.create_task(client.shell("sleep 2; echo first"))
        await asyncio.sleep(0)
        second = asyncio.create_task(client.shell("echo second"))
        third = asyncio.create_task(client.shell("echo third"))
        await asyncio.sleep(0)
        second.cancel()
        executions = await asyncio.gather(first, third)
        said = [executed.result.data["stdout"] for executed in executions]
        assert said == ["first\n", "third\n"], json.dumps(said)
        assert (await client.shell("echo fourth")).result.success
