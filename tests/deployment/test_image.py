"""The steps of the Dockerfile, run in a directory tree: the server starts, is healthy, and runs programs.

The image itself is not built here: that needs Docker.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_environment import ROOT

from deployment.container import Container
from deployment.image import Image, Stage

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

RUN_A_PROGRAM = """
import json, urllib.request

def post(path, body, token=""):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request("http://127.0.0.1:8000" + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=60))["data"]

token = post("/auth/login", {"username": "admin", "password": "admin123"})["access_token"]
for name, arguments in (
    ("python_execute", {"code": "print(sum(range(10)))"}),
    ("shell_execute", {"command": "cat /srv/luxx/data/secret_key || echo hidden"}),
    ("shell_execute", {"command": "cp /bin/echo $TMPDIR/e && $TMPDIR/e ran || echo not run"}),
):
    print(repr(post(f"/tools/{name}/execute", {"arguments": arguments}, token)["data"]["stdout"]))
"""
PRINTED = "'45\\n'\n'hidden\\n'\n'ran\\n'\n"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if os.geteuid() != 0:
        print("the Dockerfile's steps need root, for mounts and owners")
        pytest.skip("not root")
    # Not in pytest's folder, through which the user of the image cannot pass.
    folder = Path("/var/tmp") / f"luxx-image-{os.getpid()}"
    try:
        yield Image(ROOT / "Dockerfile", ROOT, folder).final
    finally:
        # It has 30,000 files; no test waits until they are deleted.
        os.posix_spawnp("rm", ["rm", "-rf", "--one-file-system", "--", str(folder)], os.environ)


def empty_volumes(image: Stage) -> None:
    for volume in image.volumes:
        for entry in (image.folder / f"volumes{volume}").iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def doctor(container: Container) -> dict[str, str]:
    """What `docker exec … luxx doctor` prints, by part."""
    printed = container.run("luxx", "doctor").stdout
    return {line.split()[1]: line for line in printed.splitlines() if line}


def test_the_image_serves_as_an_ordinary_user_and_sandboxes_programs_with_landlock(image: Stage) -> None:
    empty_volumes(image)
    with Container(image, is_read_only=True) as container:
        assert container.run("id", "-u").stdout == "10001\n"
        data = image.folder / "volumes/srv/luxx/data"
        for stored in (data / "luxx.db", data / "secret_key"):
            assert (stored.stat().st_uid, stored.stat().st_mode & 0o777) == (10001, 0o600)
        assert container.run("touch", "/srv/luxx/config.yaml").returncode != 0
        report = doctor(container)
        assert "landlock is active" in report["sandbox"], report
        assert report["data"].startswith("ok")
        assert report["permissions"].startswith("ok")
        assert report["workspaces"].startswith("ok")
        assert "volume" not in report
        assert "container" not in report
        assert container.run("luxx", "key", "list").returncode == 0
        printed = container.run("python", "-c", RUN_A_PROGRAM)
        assert printed.stdout == PRINTED, printed
        assert container.stop() == 0


def test_programs_run_in_bubblewrap_where_docker_is_told_to_allow_namespaces(image: Stage) -> None:
    empty_volumes(image)
    with Container(image, has_filter=False) as container:
        assert "Can't mount proc" in doctor(container)["sandbox"]
    with Container(image, has_filter=False, has_masks=False) as container:
        assert "bubblewrap is active" in doctor(container)["sandbox"]
        assert container.run("python", "-c", RUN_A_PROGRAM).stdout == PRINTED


def test_extras_can_be_loaded_and_a_container_without_volumes_is_warned_of(image: Stage) -> None:
    with Container(image, has_volumes=False) as container:
        assert doctor(container)["volume"].startswith("BAD")
        names = "xllamacpp, psycopg, mcp, redis, ddgs"
        loaded = container.run("python", "-c", f"import {names}")
        assert loaded.returncode == 0, loaded.stderr
