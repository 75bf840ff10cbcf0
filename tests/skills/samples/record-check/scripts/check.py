"""Prints the required fields that a JSON record does not have."""

import json
import sys

from fields import REQUIRED

with open(sys.argv[1], encoding="utf-8") as file:
    record = json.load(file)
print("missing:", ", ".join(field for field in REQUIRED if field not in record) or "nothing")
