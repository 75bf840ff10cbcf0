"""What a command loads as it begins."""

import json
import subprocess
import sys

TOLD = """
import json, sys
import luxx.entry
try:
    luxx.entry.main(["--help"])
except SystemExit:
    pass
loaded = [name for name in luxx.entry.DRAWING if name in sys.modules]
import rich.console
print(json.dumps({"loaded": loaded, "serves": "luxx.app" in sys.modules}))
"""


def test_a_server_is_loaded_without_what_only_draws_and_tools_of_others_may_still_draw() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {"loaded": [], "serves": True}
