"""`luxx knowledge list|add|search` against a real server."""

from pathlib import Path

from api.server_process import ServerProcess
from command_line import printed, refusal, run
from files.sample_files import pdf


def test_files_and_folders_are_added_listed_and_searched(
    plain_server: ServerProcess, new_user: str, tmp_path: Path
) -> None:
    def luxx(*arguments: str) -> list[str]:
        return printed(plain_server, new_user, "knowledge", *arguments).splitlines()

    folder = tmp_path / "manual"
    (folder / "more").mkdir(parents=True)
    (folder / ".hidden.md").write_text("Nobody reads this.")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "more" / "doors.md").write_text("# Doors\n\nThe door of the cellar is locked at ten.")
    (folder / "report.pdf").write_bytes(pdf("Nothing here.", "The lamp of the cellar costs nine euros."))
    added = luxx("add", "House", str(folder), "--create")
    assert [line.split("\t")[1:] for line in added] == [
        ["synced", "1 passage", "more - doors.md"], ["synced", "2 pages, 2 passages", "report.pdf"]
    ]  # fmt: skip
    assert sorted(luxx("list", "house")) == sorted(added)
    [base] = luxx("list")
    base_id, *fields = base.split("\t")
    assert fields == ["user", "owner", "2", "House"]
    assert luxx("search", base_id, "price", "of", "a", "lamp", "--limit", "1") == [
        "1. report.pdf, page 2", "   The lamp of the cellar costs nine euros."
    ]  # fmt: skip
    assert luxx("search", "House", "locked")[0] == "1. Doors"
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7 and then nothing")
    program = tmp_path / "program.exe"
    program.write_bytes(b"MZ")
    failed = run(plain_server, new_user, "knowledge", "add", "House", str(broken), str(program))
    assert failed.returncode == 1
    assert "\tfailed\t" in failed.stdout
    assert "has a type that is not known" in failed.stderr
    (tmp_path / "report.pdf").write_bytes(b"%PDF")
    for arguments, reason in (
        (("add", "House", str(folder), str(tmp_path / "report.pdf")), "would be one document"),
        (("add", "House", str(folder / "nothing.md")), "No such file"),
        (("add", "Garden", str(broken)), "there is no knowledge base 'Garden'; yours: House"),
        (("search", "House", "elephants"), "nothing in House fits these words"),
        (("search", "House", "door", "--limit", "900"), "limit"),
    ):
        assert reason in refusal(plain_server, new_user, "knowledge", *arguments), arguments
