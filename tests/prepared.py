"""A database that a server finds as an earlier start left it: made once, copied for each that needs one.

Steps take a second of work each time; what they do has tests of its own (`tests/store`).
"""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from sqlalchemy import make_url

from luxx.store.engine import open_engine
from luxx.store.migrate import migrate

NAME = "luxx.db"


def prepare(data_dir: Path) -> None:
    """Puts the database into a data directory that has none."""
    target = data_dir / NAME
    if not target.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_prepared(), target)


@cache
def _prepared() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="luxx-prepared-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    engine = open_engine(make_url(f"sqlite:///{folder / NAME}"))
    migrate(engine)
    engine.dispose()
    return folder / NAME
