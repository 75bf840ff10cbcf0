"""The embedded model's file, fetched once into a folder that survives the session."""

import importlib.util
import os
from pathlib import Path

import pytest

from luxx.errors import Unavailable
from luxx.providers.local.files import pull_model

ROOT = Path(__file__).parents[2]


def without(reason: str) -> None:
    """Skips, or fails where skips are forbidden."""
    if os.environ.get("LUXX_FORBID_SKIPS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def model_data() -> Path:
    """A data directory with the embedded model's file in it (`MODEL_DATA_DIR`, else `./data`)."""
    folder = Path(os.environ.get("MODEL_DATA_DIR", "") or ROOT / "data")
    if importlib.util.find_spec("xllamacpp") is None:
        without("xllamacpp is not installed: pip install -e '.[local]'")
    try:
        pull_model("smollm2", folder, print)
    except Unavailable as error:
        without(error.message)
    return folder
