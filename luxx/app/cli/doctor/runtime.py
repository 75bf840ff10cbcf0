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

MAX_CLOCK_SKEW_SECONDS = 2.0
"""How far this machine's clock may be from the database's: what people see is in order within it."""

MAX_BACKUP_AGE_DAYS = 7
MAX_WAL_BYTES = 1024**3
OVERDUE_SECONDS = 60.0
"""How long after its time a question may still be open: it is looked for every few seconds."""

MAX_SHOWN = 3


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a part; `mend` is what to do where it is bad."""

    part: str
    is_bad: bool = False
    text: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{'BAD' if self.is_bad else 'ok':<4} {self.part:<12} {self.text}"
        return f"{line} → {self.fix}" if self.fix else line


class SystemSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one moment. `now` is the database's time, `here` this machine's, in Unix seconds.

    `undriven` are the ids of running runs that no living process drives.
    """

    database_time: float
    local_time: float
    alive: list[str]
    dead: list[str]
    versions: list[str]
    orphaned: list[str]
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

    def read_snapshot(session: Session) -> SystemSnapshot:
        return _read_snapshot(session.connection(), is_down=store.is_sqlite and not has_server)

    snapshot = await store.read(read_snapshot)
    is_served = has_server if store.is_sqlite else bool(snapshot.alive)
    stuck = snapshot.orphaned
    if stuck and is_served:
        await asyncio.sleep(lease_seconds + 2)
        later = await store.read(read_snapshot)
        stuck = [run_id for run_id in stuck if run_id in later.orphaned]
        snapshot = later
    findings = [
        _runs(snapshot, stuck, is_served=is_served),
        _queue(snapshot, is_served=is_served),
        _questions(snapshot),
    ]
    if not store.is_sqlite:
        findings = [_processes(snapshot), _versions(snapshot), _clock(snapshot), *findings]
    else:
        findings.append(_log(Path(str(store.engine.url.database))))
    return [*findings, _backup(data_dir)]


def _read_snapshot(connection: Connection, *, is_down: bool) -> SystemSnapshot:
    local_time = time.time()
    is_sqlite = connection.dialect.name == "sqlite"
    remote_time = (
        None if is_sqlite else connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())"))
    )
    database_time = local_time if remote_time is None else float(remote_time)
    processes = _rows(connection, "processes", "SELECT * FROM processes ORDER BY started_at")
    # One that was killed leaves its row; on SQLite the lock tells.
    alive_rows = (
        []
        if is_down
        else [each for each in processes if (each["lease_until"] or database_time) >= database_time]
    )
    names = {str(each["id"]) for each in alive_rows}
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
    return SystemSnapshot(
        database_time=database_time,
        local_time=local_time,
        alive=[_describe_process(each) for each in alive_rows],
        dead=[_describe_process(each) for each in processes if each not in alive_rows],
        versions=sorted({str(each["version"]) for each in alive_rows}),
        orphaned=[str(each["id"]) for each in running if is_down or each["owner"] not in names],
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


def _describe_process(process: RowMapping) -> str:
    return f"{process['kind']} {process['host']}:{process['pid']} ({process['version']})"


def _seconds_since(summary: object) -> float:
    """Seconds since a time as a column holds it: a datetime, on SQLite its text; both UTC."""
    then = datetime.fromisoformat(str(summary)).replace(tzinfo=UTC)
    return (utc_now() - then).total_seconds()


# What it means


def _processes(snapshot: SystemSnapshot) -> Finding:
    part = "processes"
    if not snapshot.alive:
        return Finding(part=part, text="none is up", fix="start one with `luxx serve`")
    summary = f"{len(snapshot.alive)} up: {_first_few(snapshot.alive)}"
    if not snapshot.dead:
        return Finding(part=part, text=summary)
    text_ = f"{summary}; {len(snapshot.dead)} without a sign of life: {_first_few(snapshot.dead)}"
    return Finding(
        part=part, text=text_, fix="others take over their runs; start them again if they are missed"
    )


def _versions(snapshot: SystemSnapshot) -> Finding:
    part = "versions"
    if len(snapshot.versions) < 2:
        return Finding(
            part=part, text=f"all processes are Luxx {snapshot.versions[0]}" if snapshot.versions else "none"
        )
    text_ = (
        f"processes of {len(snapshot.versions)} versions share this database: {', '.join(snapshot.versions)}"
    )
    fix = f"bring all of them to {snapshot.versions[-1]} and start them again"
    return Finding(part=part, is_bad=True, text=text_, fix=fix)


def _clock(snapshot: SystemSnapshot) -> Finding:
    part, skew = "clock", abs(snapshot.local_time - snapshot.database_time)
    if skew <= MAX_CLOCK_SKEW_SECONDS:
        return Finding(part=part, text="this machine and the database agree on the time")
    text_ = f"this machine's clock is {skew:.0f} s from the database's"
    return Finding(part=part, is_bad=True, text=text_, fix="set both by a time server (NTP)")


def _runs(snapshot: SystemSnapshot, stuck: list[str], *, is_served: bool) -> Finding:
    part = "runs"
    if not snapshot.orphaned:
        return Finding(part=part, text=f"{snapshot.running} running, each driven by somebody")
    if not is_served:
        text_ = f"{len(snapshot.orphaned)} are not over and nobody drives them"
        return Finding(part=part, text=text_, fix="they go on at the next start: `luxx serve`")
    if not stuck:
        return Finding(part=part, text=f"{snapshot.running} running; what had lost its driver was taken up")
    text_ = f"{len(stuck)} are called running and nobody takes them up: {_first_few(stuck)}"
    fix = "look for these ids in the servers' logs, cancel them (POST /runs/{id}/cancel), or restart a server"
    return Finding(part=part, is_bad=True, text=text_, fix=fix)


def _queue(snapshot: SystemSnapshot, *, is_served: bool) -> Finding:
    part = "queue"
    if not snapshot.queued:
        return Finding(part=part, text="no run waits for a place")
    text_ = f"{snapshot.queued} runs wait for a place, the oldest for {snapshot.oldest_queued:.0f} s"
    if not is_served:
        return Finding(part=part, text=text_, fix="nobody is there to drive them: `luxx serve`")
    return Finding(part=part, text=text_, fix="raise limits.concurrent_runs or start another process")


def _questions(snapshot: SystemSnapshot) -> Finding:
    part = "questions"
    if not snapshot.overdue:
        return Finding(part=part, text="none is open past its time")
    text_ = f"{snapshot.overdue} are open past their time, so nobody goes on with their runs"
    return Finding(part=part, is_bad=True, text=text_, fix="start a server, or restart the one that runs")


def _log(database: Path) -> Finding:
    part, log = "wal", database.with_name(f"{database.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    text_ = f"SQLite's log has {size / 2**20:.1f} MiB"
    if size < MAX_WAL_BYTES:
        return Finding(part=part, text=text_)
    fix = "end what has been reading the database for long (a backup, another program); it is emptied then"
    return Finding(part=part, is_bad=True, text=text_, fix=fix)


def _backup(data_dir: Path) -> Finding:
    part, last = "backup", last_backup(data_dir)
    if last is None:
        return Finding(part=part, text="none was made from this data directory", fix="luxx backup FILE")
    age = utc_now() - last.at
    text_ = f"the newest is {age.days} days old: {last.file}"
    if not Path(last.file).exists():
        text_ += ", which is not there any more"
    return Finding(part=part, text=text_, fix="luxx backup FILE" if age.days >= MAX_BACKUP_AGE_DAYS else "")


def _first_few(names: list[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
