"""Checks of `luxx doctor` on a working system: processes, runs, queue, questions, clocks, log and backups.

They read rows and the data directory and change nothing.
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
"""The largest allowed difference between this machine's clock and the database's."""

MAX_BACKUP_AGE_DAYS = 7
MAX_WAL_BYTES = 1024**3
OVERDUE_SECONDS = 60.0
"""How long a question may stay open past its deadline. Servers check every few seconds."""

MAX_SHOWN = 3


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of one part. `fix` says what to do."""

    part: str
    is_bad: bool = False
    text: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{'BAD' if self.is_bad else 'ok':<4} {self.part:<12} {self.text}"
        return f"{line} → {self.fix}" if self.fix else line


def ok(part: str, text: str, fix: str = "") -> Finding:
    """A finding that is no problem; `fix` may say what to do all the same."""
    return Finding(part=part, text=text, fix=fix)


def bad(part: str, text: str, fix: str) -> Finding:
    return Finding(part=part, is_bad=True, text=text, fix=fix)


class SystemSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What one read of the tables returns. Times in Unix seconds, `oldest_queued` in seconds.

    `orphaned`: the ids of running runs that no living process drives.
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
    """The findings about work. If runs are orphaned, it waits until a process should have taken them over.

    `has_server`: whether a server has locked this data directory; with SQLite, whether any server runs.
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
    # A killed process leaves its row. With SQLite the lock shows whether a process is alive.
    alive_rows = (
        []
        if is_down
        else [process for process in processes if (process["lease_until"] or database_time) >= database_time]
    )
    names = {str(process["id"]) for process in alive_rows}
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
        alive=[_describe_process(process) for process in alive_rows],
        dead=[_describe_process(process) for process in processes if process not in alive_rows],
        versions=sorted({str(process["version"]) for process in alive_rows}),
        orphaned=[str(run["id"]) for run in running if is_down or run["owner"] not in names],
        running=len(running),
        queued=int(queued[0]["many"]),
        oldest_queued=0.0 if first is None else _seconds_since(first),
        overdue=sum(_seconds_since(question["due_at"]) > OVERDUE_SECONDS for question in due),
    )


def _rows(connection: Connection, table: str, query: str) -> Sequence[RowMapping]:
    """The rows; none if the database does not have the table yet."""
    if not inspect(connection).has_table(table):
        return []
    return connection.execute(text(query)).mappings().all()


def _describe_process(process: RowMapping) -> str:
    return f"{process['kind']} {process['host']}:{process['pid']} ({process['version']})"


def _seconds_since(column_value: object) -> float:
    """Seconds since a column's time in UTC: a datetime, with SQLite its text."""
    then = datetime.fromisoformat(str(column_value)).replace(tzinfo=UTC)
    return (utc_now() - then).total_seconds()


# Findings


def _processes(snapshot: SystemSnapshot) -> Finding:
    part = "processes"
    if not snapshot.alive:
        return ok(part, "no process is running", "start one with `luxx serve`")
    summary = f"{len(snapshot.alive)} running: {_first_few(snapshot.alive)}"
    if not snapshot.dead:
        return ok(part, summary)
    text_ = f"{summary}; {len(snapshot.dead)} with an expired lease: {_first_few(snapshot.dead)}"
    return ok(part, text_, "other processes take over their runs; restart them if they are needed")


def _versions(snapshot: SystemSnapshot) -> Finding:
    part = "versions"
    if len(snapshot.versions) < 2:
        return ok(part, f"all processes are Luxx {snapshot.versions[0]}" if snapshot.versions else "none")
    text_ = (
        f"processes of {len(snapshot.versions)} versions share this database: {', '.join(snapshot.versions)}"
    )
    fix = f"upgrade all of them to {snapshot.versions[-1]} and start them again"
    return bad(part, text_, fix)


def _clock(snapshot: SystemSnapshot) -> Finding:
    part, skew = "clock", abs(snapshot.local_time - snapshot.database_time)
    if skew <= MAX_CLOCK_SKEW_SECONDS:
        return ok(part, "this machine and the database agree on the time")
    text_ = f"this machine's clock is {skew:.0f} s from the database's"
    return bad(part, text_, "set both by a time server (NTP)")


def _runs(snapshot: SystemSnapshot, stuck: list[str], *, is_served: bool) -> Finding:
    part = "runs"
    if not snapshot.orphaned:
        return ok(part, f"{snapshot.running} running, each driven by a process")
    if not is_served:
        text_ = f"{len(snapshot.orphaned)} are unfinished and no process drives them"
        return ok(part, text_, "they continue at the next start: `luxx serve`")
    if not stuck:
        return ok(part, f"{snapshot.running} running; a process took over the orphaned runs")
    text_ = f"{len(stuck)} have the status running, but no process drives them: {_first_few(stuck)}"
    fix = "look for these ids in the servers' logs, cancel them (POST /runs/{id}/cancel), or restart a server"
    return bad(part, text_, fix)


def _queue(snapshot: SystemSnapshot, *, is_served: bool) -> Finding:
    part = "queue"
    if not snapshot.queued:
        return ok(part, "no run waits for a slot")
    text_ = f"{snapshot.queued} runs wait for a slot, the oldest for {snapshot.oldest_queued:.0f} s"
    if not is_served:
        return ok(part, text_, "no process is running: start `luxx serve`")
    return ok(part, text_, "raise limits.concurrent_runs or start another process")


def _questions(snapshot: SystemSnapshot) -> Finding:
    part = "questions"
    if not snapshot.overdue:
        return ok(part, "no open question is past its deadline")
    text_ = f"{snapshot.overdue} open questions are past their deadline, so their runs do not continue"
    return bad(part, text_, "start a server, or restart the one that runs")


def _log(database: Path) -> Finding:
    part, log = "wal", database.with_name(f"{database.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    text_ = f"SQLite's log has {size / 2**20:.1f} MiB"
    if size < MAX_WAL_BYTES:
        return ok(part, text_)
    fix = (
        "end the process that has read the database for a long time (a backup, another program); "
        "SQLite then empties the log"
    )
    return bad(part, text_, fix)


def _backup(data_dir: Path) -> Finding:
    part, last = "backup", last_backup(data_dir)
    if last is None:
        return ok(part, "none was made from this data directory", "luxx backup FILE")
    age = utc_now() - last.at
    text_ = f"the newest is {age.days} days old: {last.file}"
    if not Path(last.file).exists():
        text_ += ", which no longer exists"
    return ok(part, text_, "luxx backup FILE" if age.days >= MAX_BACKUP_AGE_DAYS else "")


def _first_few(names: list[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
