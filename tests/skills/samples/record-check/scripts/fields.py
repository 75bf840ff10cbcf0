"""The fields that a record must have."""

import json
from pathlib import Path

REQUIRED = json.loads((Path(__file__).parents[1] / "assets/required.json").read_text("utf-8"))
