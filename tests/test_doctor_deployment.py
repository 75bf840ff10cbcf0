"""`luxx doctor` about containers, the unit of systemd, and owners of directories."""

import asyncio
import os
from pathlib import Path

import pytest

from luxx.app.cli.doctor.checks import Finding, examine_installation
from luxx.app.cli.doctor.machine import examine_container, is_in_container_layer, unit_findings
from luxx.infra.config.schema import AppConfig, Config, LocalConfig, ServerConfig, WorkspaceConfig

DOCKER = """\
1 0 0:40 / / rw - overlay overlay rw,lowerdir=/a
2 1 0:42 / /proc rw - proc proc rw
3 1 254:1 /volumes/a\\040b /srv/luxx/data rw - ext4 /dev/vda rw
4 1 0:50 / /srv/luxx/work\\040spaces rw - tmpfs tmpfs rw
"""
HOST = "1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:9 / /var/lib/docker/overlay2/m rw - overlay overlay rw\n"


@pytest.mark.parametrize(
    ("path", "mounts", "is_lost"),
    [
        ("/srv/luxx/data", DOCKER, False),
        ("/srv/luxx/data/models", DOCKER, False),
        ("/srv/luxx/work spaces/a", DOCKER, False),
        ("/srv/luxx", DOCKER, True),
        ("/srv/luxx/database", DOCKER, True),
        ("/var/lib/luxx", HOST, False),
        ("/var/lib/docker/overlay2/m", HOST, False),
        ("/var/lib/luxx", "", False),
    ],
)
def test_what_is_on_no_volume_is_deleted_with_the_container(path: str, mounts: str, is_lost: bool) -> None:
    assert is_in_container_layer(Path(path), mounts) is is_lost


PLAIN = {
    "ProtectKernelTunables": "no",
    "ProtectKernelLogs": "no",
    "SystemCallFilter": "~",
    "MemoryDenyWriteExecute": "no",
    "RestrictNamespaces": "no",
    "ProcSubset": "all",
    "ProtectHostname": "no",
    "LoadState": "loaded",
}
"""What `systemctl show` of systemd 252 prints of a unit without these directives."""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, []),
        ({"SystemCallFilter": "~adjtimex clock_settime swapon reboot"}, []),
        (
            {"SystemCallFilter": "~chroot mount pivot_root umount2"},
            ["SystemCallFilter= refuses mount, pivot_root"],
        ),
        ({"SystemCallFilter": "read write unshare"}, ["refuses mount, pivot_root, sethostname"]),
        ({"RestrictNamespaces": "yes"}, ["RestrictNamespaces=yes"]),
        ({"RestrictNamespaces": "cgroup ipc mnt pid uts"}, ["RestrictNamespaces=cgroup ipc"]),
        (
            {"ProcSubset": "pid", "MemoryDenyWriteExecute": "yes"},
            ["ProcSubset=pid, so tools start no program", "MemoryDenyWriteExecute=yes, so Node.js crashes"],
        ),
    ],
)
def test_directives_of_the_unit_that_break_the_sandbox_are_named(
    changes: dict[str, str], named: list[str]
) -> None:
    findings = unit_findings(PLAIN | changes)
    if not named:
        assert [finding.is_bad for finding in findings] == [False]
        return
    assert [finding.is_bad for finding in findings] == [True] * len(named)
    assert all(part in finding.text for part, finding in zip(named, findings, strict=True)), findings


def config_in(folder: Path, **sections: object) -> Config:
    given = {
        "app": AppConfig(port=0),
        "workspace": WorkspaceConfig(root=str(folder / "workspaces")),
        "local": LocalConfig(enabled=False),
        **sections,
    }
    return Config(data_dir=str(folder / "data"), **given)  # type: ignore[arg-type]


def run_checks(config: Config) -> dict[str, Finding]:
    return {finding.part: finding for finding in asyncio.run(examine_installation(config, {}))}


def test_the_unit_and_the_trusted_proxies_are_part_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    shown = "\n".join(f"{name}={value}" for name, value in (PLAIN | {"ProtectHostname": "yes"}).items())
    (programs / "systemctl").write_text(f"#!/bin/sh\n[ $2 = luxx.service ] && cat <<E\n{shown}\nE\n")
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    report = run_checks(config_in(tmp_path, server=ServerConfig(trusted_proxies=["10.0.0.2", "0.0.0.0/0"])))
    assert report["unit"].is_bad
    assert "ProtectHostname=yes" in report["unit"].text
    assert report["proxy"].is_bad
    assert "every address" in report["proxy"].text


def test_root_in_a_container_is_advised_to_be_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"container": "podman"}
    for user, parts in ((0, ["container"]), (10001, [])):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        findings = examine_container(config_in(tmp_path), tmp_path / "data", environ)
        assert [finding.part for finding in findings if finding.part != "volume"] == parts


def test_a_directory_of_another_user_is_bad_with_both_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    own = os.geteuid()
    # Root may write everywhere, so the question is answered for it.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "geteuid", lambda: own + 7)
    finding = run_checks(config_in(tmp_path))["data"]
    assert finding.is_bad
    assert f"belongs to user {own}, and Luxx runs as user {own + 7}" in finding.text
    assert finding.fix.startswith(f"chown -R {own + 7} ")
