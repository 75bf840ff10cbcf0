"""`luxx doctor`: reports problems with their fixes, changes nothing and shows no secret."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from migrated_databases import prepare
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.app.cli.doctor.checks import Finding, examine_installation
from luxx.app.container import Services
from luxx.domain.backup.backup import DataPaths, create_backup
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import (
    AppConfig,
    Config,
    DatabaseConfig,
    LlmConfig,
    LocalConfig,
    RunsConfig,
    WorkspaceConfig,
)
from luxx.infra.data_permissions import DataDirLock
from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text
from luxx.runs.models import RunRow

KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    """As in every process that the command line starts."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def config_in(folder: Path, **sections: object) -> Config:
    given = {
        "app": AppConfig(port=0),
        "workspace": WorkspaceConfig(root=str(folder / "workspaces")),
        "local": LocalConfig(enabled=False),
        **sections,
    }
    return Config(data_dir=str(folder / "data"), **given)  # type: ignore[arg-type]


def run_checks(config: Config, environ: dict[str, str] | None = None) -> dict[str, Finding]:
    return {finding.part: finding for finding in asyncio.run(examine_installation(config, environ or {}))}


async def start_once(config: Config) -> None:
    prepare(Path(config.data_dir))
    services = Services(config, {})
    await services.open()
    await services.close()


def with_model(folder: Path, url: str, **sections: object) -> Config:
    llm = LlmConfig(provider="openai_compatible", api_url=f"{url}/v1", api_key=KEY, model="scripted")
    return config_in(folder, llm=llm, **sections)


def unused_script() -> ScriptedProvider:
    return ScriptedProvider(Script(rules=[Rule(name="never asked", reply=[Text(text="x")])]))


def test_an_empty_data_directory_is_fine_and_stays_untouched(tmp_path: Path) -> None:
    report = run_checks(config_in(tmp_path), {"DEEPSEEK_API_KEY": KEY})
    assert [str(finding) for finding in report.values() if finding.is_bad] == []
    assert "deepseek" in report["providers"].text
    assert list(tmp_path.iterdir()) == []


def test_a_missing_model_is_reported(tmp_path: Path) -> None:
    report = run_checks(config_in(tmp_path))["providers"]
    assert report.is_bad
    assert "DEEPSEEK_API_KEY" in report.fix


async def test_a_started_server_with_an_answering_provider_is_fine(tmp_path: Path) -> None:
    provider = unused_script()
    await provider.start()
    try:
        config = with_model(tmp_path, provider.url)
        await start_once(config)
        findings = await examine_installation(config, {})
    finally:
        await provider.stop()
    assert [str(finding) for finding in findings if finding.is_bad] == []
    printed = "\n".join(map(str, findings))
    assert "provider openai_compatible answers and offers 1 models" in printed
    assert KEY not in printed


async def test_a_provider_that_does_not_answer_is_bad_and_its_key_is_not_shown(tmp_path: Path) -> None:
    provider = unused_script()
    await provider.start()
    config = with_model(tmp_path, provider.url)
    await start_once(config)
    await provider.stop()
    result = await examine_installation(config, {})
    report = {finding.part: finding for finding in result}["provider openai_compatible"]
    assert report.is_bad
    assert report.fix
    assert KEY not in str(report)


def test_a_lost_secret_is_named_as_the_reason(tmp_path: Path) -> None:
    config = with_model(tmp_path, "http://127.0.0.1:9")
    asyncio.run(start_once(config))
    (tmp_path / "data" / "secret_key").unlink()
    assert "secret key is missing" in run_checks(config)["provider openai_compatible"].text
    assert not (tmp_path / "data" / "secret_key").exists()


def test_a_secret_that_others_can_read_is_bad(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    asyncio.run(start_once(config))
    (tmp_path / "data" / "secret_key").chmod(0o644)
    report = run_checks(config)["secret"]
    assert report.is_bad
    assert report.fix.startswith("chmod 600 ")


def test_data_that_others_can_read_is_bad(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    asyncio.run(start_once(config))
    assert not run_checks(config)["permissions"].is_bad
    database = tmp_path / "data" / "luxx.db"
    database.chmod(0o644)
    report = run_checks(config)["permissions"]
    assert report.is_bad
    assert report.fix.startswith("chmod go-rw")
    assert str(database) in report.fix


@pytest.mark.parametrize("secret", ["short", ""])
def test_a_missing_or_short_secret_is_bad_where_one_is_needed(tmp_path: Path, secret: str) -> None:
    database = DatabaseConfig(type="postgresql", url="postgresql://luxx:pass-word@127.0.0.1:9/luxx")
    config = config_in(tmp_path, app=AppConfig(secret_key=secret), database=database)
    report = run_checks(config)
    assert report["secret"].is_bad
    assert report["database"].is_bad
    assert "pass-word" not in "\n".join(map(str, report.values()))


def test_the_default_password_is_bad_only_where_others_can_reach_the_server(tmp_path: Path) -> None:
    here = config_in(tmp_path)
    asyncio.run(start_once(here))
    assert not run_checks(here)["password"].is_bad
    assert run_checks(here)["password"].fix == "luxx user passwd admin"
    assert run_checks(config_in(tmp_path, app=AppConfig(host="0.0.0.0")))["password"].is_bad


def test_a_running_server_is_reported_and_not_bad(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path / "data")
    assert "no server" in run_checks(config_in(tmp_path))["server"].text
    lock.take()
    try:
        report = run_checks(config_in(tmp_path))["server"]
        assert not report.is_bad
        assert "is running" in report.text
    finally:
        lock.release()
    assert "no server" in run_checks(config_in(tmp_path))["server"].text


def test_a_database_of_a_newer_version_is_bad_and_of_an_older_one_is_not(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    asyncio.run(start_once(config))
    services = Services(config, {})
    try:
        with services.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        assert run_checks(config)["database"].is_bad
        with services.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM alembic_version")
        older = run_checks(config)["database"]
        assert not older.is_bad
        assert "luxx migrate" in older.fix
    finally:
        services.release()


def test_keys_of_the_environment_that_no_provider_uses_are_named(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    first = {"OPENAI_API_KEY": "sk-of-the-first-start", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}

    async def start_with_key() -> None:
        prepare(Path(config.data_dir))
        services = Services(config, first)
        await services.open()
        await services.close()

    asyncio.run(start_with_key())
    assert "not used" not in run_checks(config, first)["provider openai"].text
    later = {"OPENAI_API_KEY": "sk-a-later-key-of-openai", "DEEPSEEK_API_KEY": "sk-a-new-key-of-deepseek"}
    report = run_checks(config, later)
    assert report["provider deepseek"].text == "the next start connects DEEPSEEK_API_KEY"
    assert "has another key" in report["provider openai"].text


def test_a_file_instead_of_a_directory_is_bad(tmp_path: Path) -> None:
    (tmp_path / "workspaces").write_text("")
    report = run_checks(config_in(tmp_path))["workspaces"]
    assert report.is_bad
    assert report.fix


def test_missing_workspaces_are_bad_if_they_are_not_created(tmp_path: Path) -> None:
    config = config_in(tmp_path, workspace=WorkspaceConfig(root=str(tmp_path / "w"), auto_create=False))
    assert run_checks(config)["workspaces"].fix == f"mkdir -p {tmp_path / 'w'}"


def test_a_finding_is_one_line() -> None:
    assert (
        str(Finding(part="disk", text="full", is_bad=True, fix="make room"))
        == "BAD  disk         full → make room"
    )
    assert str(Finding(part="disk", text="fine")) == "ok   disk         fine"


def test_a_started_server_has_no_stuck_runs_and_no_backup(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    asyncio.run(start_once(config))
    report = run_checks(config)
    assert [report[part].is_bad for part in ("runs", "queue", "questions", "wal", "backup")] == [False] * 5
    assert report["backup"].fix == "luxx backup FILE"
    data_paths = DataPaths(config)
    create_backup(data_paths, tmp_path / "backup.zip")
    data_paths.close()
    assert "0 days old" in run_checks(config)["backup"].text


@pytest.mark.heavy
def test_runs_without_a_driver_continue_at_the_next_start_or_are_stuck(tmp_path: Path) -> None:
    config = config_in(tmp_path, runs=RunsConfig(lease_seconds=1))
    asyncio.run(start_once(config))
    services = Services(config, {})
    try:
        with services.engine.begin() as connection:
            add_lost_runs(connection)
    finally:
        services.release()
    report = run_checks(config)
    assert "no process drives them" in report["runs"].text
    assert "luxx serve" in report["runs"].fix
    assert report["queue"].text.startswith("1 runs wait for a slot, the oldest for ")
    lock = DataDirLock(tmp_path / "data")
    lock.take()
    try:
        stuck = run_checks(config)["runs"]
    finally:
        lock.release()
    assert stuck.is_bad
    assert "lost-run" in stuck.text


def add_lost_runs(connection: Connection) -> None:
    for run_id, status in (("lost-run", "running"), ("waiting-run", "queued")):
        run = RunRow(
            id=run_id, user_id=1, tenant_id=1, kind="chat", subject_id="s", status=status, request="{}",
            created_at=utc_now(),
        )  # fmt: skip
        with Session(connection) as session:
            session.add(run)
            session.flush()
