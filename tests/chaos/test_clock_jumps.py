"""The clock of one process jumps by an hour: no run is lost, none is driven twice."""

import asyncio
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.scripts import PROSE, words

from chaos.cluster import LEASE_SECONDS, TAKEOVER_SECONDS, Cluster
from chaos.endings import check_completed
from chaos.invariants import check_database
from chaos.postgres import Postgres
from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text, When

QUIET_SECONDS = LEASE_SECONDS * 1.5
"""Long enough for any process that would wrongly take over a run."""


def faked_clock(file: Path) -> dict[str, str]:
    """The environment of a process whose clock has the offset in the file; its sleeps are not affected."""
    module_spec = importlib.util.find_spec("libfaketime")
    if module_spec is None or module_spec.origin is None:
        pytest.skip("no libfaketime; pip install libfaketime")
    library = Path(module_spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    assert library.exists(), f"{library} is not there"
    file.write_text("+0", "ascii")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@pytest.fixture(scope="module")
def skewed(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two processes; the file `clock` has the offset of the first one's clock."""
    folder = tmp_path_factory.mktemp("skewed")
    extra = {"web1": faked_clock(folder / "clock")}
    with Cluster(folder, postgres.new_database(), webs=2, extra=extra) as cluster:
        yield cluster


def script() -> Script:
    """Each of two runs waits in the middle of its first call; later calls send the whole text."""
    rules: list[Rule] = []
    for name in ("ann", "ben"):
        when = When(user=name, call=1)
        rules.append(Rule(name=f"{name} cut", when=when, reply=words(PROSE, f"middle of {name}")))
    return Script(rules=[*rules, Rule(name="whole", when=When(user="ann"), reply=[Text(text=PROSE)])])


@pytest.mark.parametrize("jump", ["+3600", pytest.param("-3600", marks=pytest.mark.long, id="back-short")])
async def test_after_a_clock_jump_no_run_changes_its_driver_and_a_death_is_noticed_in_time(
    skewed: Cluster, jump: str
) -> None:
    (skewed.folder / "clock").write_text("+0", "ascii")
    await skewed.restart_all()
    async with ScriptedProvider(script()) as model, skewed.clients() as (jumping, steady):
        anns, bens = [await jumping.conversation(model.url) for _ in range(2)]
        of_ann = await jumping.start_run(anns, "ann")
        of_ben = await steady.start_run(bens, "ben")
        await model.reached("middle of ann")
        await model.reached("middle of ben")
        (skewed.folder / "clock").write_text(jump, "ascii")
        with pytest.raises(TimeoutError):
            await model.arrived(3, QUIET_SECONDS)
        model.release("middle of ben")
        assert await check_completed(steady, bens, await steady.wait_for_end(of_ben["id"])) == PROSE
        begun = time.monotonic()
        await skewed.kill(skewed.webs[0])
        await model.arrived(3, TAKEOVER_SECONDS)
        print(f"taken up after {time.monotonic() - begun:.2f} s")
        assert await check_completed(steady, anns, await steady.wait_for_end(of_ann["id"])) == PROSE
        assert len(model.requests) == 3
    await asyncio.to_thread(check_database, skewed)
