"""`luxx doctor` starts each MCP server and reports the result, without the server's secrets."""

from pathlib import Path

import msgspec
from migrated_databases import prepare

from luxx.app.cli.doctor.checks import examine_installation
from luxx.app.container import Services
from luxx.infra.config.schema import Config
from mcp_servers import hostile
from mcp_servers.harness import script

SECRET = "sk-a-key-that-nobody-may-see"


async def test_doctor_reports_each_server(tmp_path: Path) -> None:
    servers = [
        script("well", hostile.WELL, env=[f"KEY={SECRET}"]),
        script("odd", hostile.lists(hostile.NO_SCHEMA)),
        script("gone", hostile.DIES),
        script("nobodys", hostile.WELL, tenant="nobody"),
    ]
    plain = {
        "app": {"port": 0},
        "workspace": {"root": str(tmp_path / "workspaces")},
        "local": {"enabled": False},
        "data_dir": str(tmp_path / "data"),
    }

    prepare(tmp_path / "data")
    services = Services(msgspec.convert(plain, Config), {})
    await services.open()
    await services.close()
    result = await examine_installation(msgspec.convert({**plain, "mcp": {"servers": servers}}, Config), {})
    findings_by_part = {finding.part: finding for finding in result}
    assert not findings_by_part["mcp default/well"].is_bad
    assert findings_by_part["mcp default/well"].text == "starts and offers 1 tools"
    assert findings_by_part["mcp default/odd"].text == (
        "starts and offers 1 tools; left out: no_schema: it does not follow the protocol: inputSchema: field "
        "required"
    )
    assert findings_by_part["mcp default/gone"].is_bad
    assert "no licence" in findings_by_part["mcp default/gone"].text
    assert findings_by_part["mcp nobody/nobodys"].text == "is not started: there is no tenant named 'nobody'"
    assert SECRET not in str(findings_by_part)
