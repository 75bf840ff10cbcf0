"""`luxx artifact list|show|get` against a real server."""

import zipfile
from pathlib import Path
from typing import Any

import httpx
from api.server_process import ServerProcess
from command_line import printed, refusal

DECK = "# Open day\n\n- Telescopes\n\n---\n\n# Programme\n\n- Doors open\n"


def test_artifacts_are_listed_shown_and_downloaded(
    plain_server: ServerProcess, new_user: str, tmp_path: Path
) -> None:
    def luxx(*arguments: str) -> str:
        return printed(plain_server, new_user, "artifact", *arguments)

    def send(method: str, path: str, body: object) -> Any:
        headers = {"authorization": f"Bearer {new_user}"}
        answer = httpx.request(method, f"{plain_server.url}{path}", json=body, headers=headers)
        return answer.raise_for_status().json()["data"]

    deck = send("POST", "/artifacts", {"type": "ppt", "name": "Open day", "content": DECK})["id"]
    files = [{"path": "src/bread.py", "content": "print('rye')\n"}]
    program = send("POST", "/artifacts", {"type": "code", "name": "bread", "files": files})["id"]
    edit = {"page": 2, "content": "# Programme\n\n- Talks", "base_version": 1}
    send("PUT", f"/artifacts/{deck}/content", edit)
    assert luxx("list").splitlines() == [
        f"{program}\tcode\tversion 1\t1 page\tbread",
        f"{deck}\tppt\tversion 2\t2 pages\tOpen day",
    ]
    assert luxx("list", "--type", "code").startswith(program)
    assert luxx("show", "open day") == DECK.replace("Doors open", "Talks")
    assert luxx("show", deck, "--page", "2", "--version", "1") == "# Programme\n\n- Doors open\n"
    target = tmp_path / "Open day.md"
    assert luxx("get", "Open day", "--format", "md", "-o", str(tmp_path)) == f"{target}\n"
    assert target.read_text("utf-8") == DECK.replace("Doors open", "Talks")
    archive = tmp_path / "bread.zip"
    luxx("get", program, "-o", str(archive))
    with zipfile.ZipFile(archive) as opened:
        assert opened.read("src/bread.py") == b"print('rye')\n"
    assert luxx("get", deck, "--format", "md", "--version", "1", "-o", "-") == DECK
    for arguments, reason in (
        (("get", deck, "--format", "md", "-o", str(tmp_path)), "exists; --force replaces it"),
        (("get", deck, "--format", "csv", "-o", "-"), "is downloaded as pptx, pdf, md"),
        (("show", "nothing"), "there is no artifact 'nothing'; yours: bread, Open day"),
        (("show", deck, "--page", "9"), "there is no page 9"),
        (("show", deck, "--version", "9"), "has no version 9"),
    ):
        assert reason in refusal(plain_server, new_user, "artifact", *arguments), arguments
