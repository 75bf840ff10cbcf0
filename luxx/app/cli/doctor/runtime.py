"""What `luxx doctor` sees of a system at work: its processes, its runs, its queue, its clocks, its backups.

Only looks, at rows and at the data directory; how to mend what it finds stands beside it.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from sqlalchemy import Connection, RowMapping, inspect, text
from sqlalchemy.orm import Session

from luxx.domain.backup.backup import last_backup
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store

CLOCK_SECONDS = 2.0
"""How far this machine's clock may be from the database's: what people see is in order within it."""

BACKUP_DAYS = 7
LOG_BYTES = 1024**3
OVERDUE_SECONDS = 60.0
"""How long after its time a question may still be open: it is looked for every few seconds."""

SHOWN = 3


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a part; `mend` is what to do where it is bad."""

    part: str
    is_bad: bool = False
    text: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{'BAD' if self.is_bad else 'ok':<4} {self.part:<12} {self.text}"
        return f"{line} → {self.mend}" if self.mend else line


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one moment. `now` is the database's time, `here` this machine's, in Unix seconds.

    `undriven` are the ids of running runs that no living process drives.
    """

    now: float
    here: float
    alive: list[str]
    dead: list[str]
    versions: list[str]
    undriven: list[str]
    running: int
    queued: int
    oldest_queued: float
    overdue: int


async def examine_work(
    store: Store, data_dir: Path, *, has_server: bool, lease_seconds: float
) -> list[Finding]:
    """What is stuck or split. Where runs have no driver it looks again when somebody should have taken them.

    `has_server`: whether a server holds this data directory, which says it all on SQLite.
    """

    def look(session: Session) -> Seen:
        return _look(session.connection(), is_down=store.is_sqlite and not has_server)

    seen = await store.read(look)
    is_served = has_server if store.is_sqlite else bool(seen.alive)
    stuck = seen.undriven
    if stuck and is_served:
        await asyncio.sleep(lease_seconds + 2)
        again = await store.read(look)
        stuck = [run_id for run_id in stuck if run_id in again.undriven]
        seen = again
    findings = [_runs(seen, stuck, is_served=is_served), _queue(seen, is_served=is_served), _questions(seen)]
    if not store.is_sqlite:
        findings = [_processes(seen), _versions(seen), _clock(seen), *findings]
    else:
        findings.append(_log(Path(str(store.engine.url.database))))
    return [*findings, _backup(data_dir)]


def _look(connection: Connection, *, is_down: bool) -> Seen:
    here = time.time()
    is_sqlite = connection.dialect.name == "sqlite"
    there = None if is_sqlite else connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())"))
    now = here if there is None else float(there)
    processes = _rows(connection, "processes", "SELECT * FROM processes ORDER BY started_at")
    # One that was killed leaves its row; on SQLite the lock tells.
    living = [] if is_down else [each for each in processes if (each["lease_until"] or now) >= now]
    names = {str(each["id"]) for each in living}
    running = _rows(connection, "runs", "SELECT id, owner FROM runs WHERE status = 'running'")
    queued = _rows(
        connection,
        "runs",
        "SELECT count(*) AS many, min(created_at) AS first FROM runs WHERE status = 'queued'",
    )
    due = _rows(
        connection, "questions", "SELECT due_at FROM questions WHERE status = 'open' AND due_at IS NOT NULL"
    )
    first = queued[0]["first"]
    return Seen(
        now=now,
        here=here,
        alive=[_named(each) for each in living],
        dead=[_named(each) for each in processes if each not in living],
        versions=sorted({str(each["version"]) for each in living}),
        undriven=[str(each["id"]) for each in running if is_down or each["owner"] not in names],
        running=len(running),
        queued=int(queued[0]["many"]),
        oldest_queued=0.0 if first is None else _seconds_since(first),
        overdue=sum(_seconds_since(each["due_at"]) > OVERDUE_SECONDS for each in due),
    )


def _rows(connection: Connection, table: str, query: str) -> Sequence[RowMapping]:
    """Nothing where the database has no such table yet."""
    if not inspect(connection).has_table(table):
        return []
    return connection.execute(text(query)).mappings().all()


def _named(process: RowMapping) -> str:
    return f"{process['kind']} {process['host']}:{process['pid']} ({process['version']})"


def _seconds_since(told: object) -> float:
    """Seconds since a time as a column holds it: a datetime, on SQLite its text; both UTC."""
    then = datetime.fromisoformat(str(told)).replace(tzinfo=UTC)
    return (utc_now() - then).total_seconds()


# What it means


def _processes(seen: Seen) -> Finding:
    part = "processes"
    if not seen.alive:
        return Finding(part=part, text="none is up", mend="start one with `luxx serve`")
    told = f"{len(seen.alive)} up: {_some(seen.alive)}"
    if not seen.dead:
        return Finding(part=part, text=told)
    text_ = f"{told}; {len(seen.dead)} without a sign of life: {_some(seen.dead)}"
    return Finding(
        part=part, text=text_, mend="others take over their runs; start them again if they are missed"
    )


def _versions(seen: Seen) -> Finding:
    part = "versions"
    if len(seen.versions) < 2:
        return Finding(
            part=part, text=f"all processes are Luxx {seen.versions[0]}" if seen.versions else "none"
        )
    text_ = f"processes of {len(seen.versions)} versions share this database: {', '.join(seen.versions)}"
    mend = f"bring all of them to {seen.versions[-1]} and start them again"
    return Finding(part=part, is_bad=True, text=text_, mend=mend)


def _clock(seen: Seen) -> Finding:
    part, apart = "clock", abs(seen.here - seen.now)
    if apart <= CLOCK_SECONDS:
        return Finding(part=part, text="this machine and the database agree on the time")
    text_ = f"this machine's clock is {apart:.0f} s from the database's"
    return Finding(part=part, is_bad=True, text=text_, mend="set both by a time server (NTP)")


def _runs(seen: Seen, stuck: list[str], *, is_served: bool) -> Finding:
    part = "runs"
    if not seen.undriven:
        return Finding(part=part, text=f"{seen.running} running, each driven by somebody")
    if not is_served:
        text_ = f"{len(seen.undriven)} are not over and nobody drives them"
        return Finding(part=part, text=text_, mend="they go on at the next start: `luxx serve`")
    if not stuck:
        return Finding(part=part, text=f"{seen.running} running; what had lost its driver was taken up")
    text_ = f"{len(stuck)} are called running and nobody takes them up: {_some(stuck)}"
    mend = (
        "look for these ids in the servers' logs, cancel them (POST /runs/{id}/cancel), or restart a server"
    )
    return Finding(part=part, is_bad=True, text=text_, mend=mend)


def _queue(seen: Seen, *, is_served: bool) -> Finding:
    part = "queue"
    if not seen.queued:
        return Finding(part=part, text="no run waits for a place")
    text_ = f"{seen.queued} runs wait for a place, the oldest for {seen.oldest_queued:.0f} s"
    if not is_served:
        return Finding(part=part, text=text_, mend="nobody is there to drive them: `luxx serve`")
    return Finding(part=part, text=text_, mend="raise limits.concurrent_runs or start another process")


def _questions(seen: Seen) -> Finding:
    part = "questions"
    if not seen.overdue:
        return Finding(part=part, text="none is open past its time")
    text_ = f"{seen.overdue} are open past their time, so nobody goes on with their runs"
    return Finding(part=part, is_bad=True, text=text_, mend="start a server, or restart the one that runs")


def _log(database: Path) -> Finding:
    part, log = "wal", database.with_name(f"{database.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    text_ = f"SQLite's log has {size / 2**20:.1f} MiB"
    if size < LOG_BYTES:
        return Finding(part=part, text=text_)
    mend = "end what has been reading the database for long (a backup, another program); it is emptied then"
    return Finding(part=part, is_bad=True, text=text_, mend=mend)


def _backup(data_dir: Path) -> Finding:
    part, last = "backup", last_backup(data_dir)
    if last is None:
        return Finding(part=part, text="none was made from this data directory", mend="luxx backup FILE")
    age = utc_now() - last.at
    text_ = f"the newest is {age.days} days old: {last.file}"
    if not Path(last.file).exists():
        text_ += ", which is not there any more"
    return Finding(part=part, text=text_, mend="luxx backup FILE" if age.days >= BACKUP_DAYS else "")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
