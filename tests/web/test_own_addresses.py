"""This machine's own addresses are refused, also those that look public."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from luxx.infra.network.hosts import Reach, is_own_address, reach_of_address

PUBLIC_BY_ADDRESS = ["93.184.215.14", "93.184.216.2", "2606:2800:220:1::1"]
PROGRAM = """
import asyncio
from luxx.errors import NotAllowed
from luxx.infra.network.hosts import WebGuard

async def work():
    for address in %r:
        try:
            await WebGuard().addresses_of(address, 6379)
        except NotAllowed as error:
            print(error.message)
    await WebGuard().addresses_of("93.184.215.15", 443)

asyncio.run(work())
"""


def run_in_own_network(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "-rn", "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )


def test_an_address_of_this_machine_is_its_own() -> None:
    assert is_own_address("127.0.0.1")
    assert is_own_address("::1")
    for address in PUBLIC_BY_ADDRESS:
        assert not is_own_address(address)
        assert reach_of_address(address) is Reach.PUBLIC


@pytest.mark.skipif(
    not (shutil.which("unshare") and shutil.which("ip")), reason="needs the programs unshare and ip"
)
def test_a_public_looking_address_of_this_machine_is_not_reached() -> None:
    if run_in_own_network("ip link set lo up").returncode != 0:
        pytest.skip("no network of one's own may be made here")
    # The second is an additional address beside another one of the same network.
    added = ["93.184.215.14/32", "93.184.216.1/24", "93.184.216.2/24", "2606:2800:220:1::1/128"]
    adding = " && ".join(f"ip addr add {address} dev lo" for address in added)
    program = shlex.quote(PROGRAM % (PUBLIC_BY_ADDRESS,))
    done = run_in_own_network(f"ip link set lo up && {adding} && exec {sys.executable} -c {program}")
    assert done.stderr == ""
    assert done.stdout.count("is not on the public internet") == len(PUBLIC_BY_ADDRESS)
