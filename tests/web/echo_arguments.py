"""A document reader for tests: prints its own arguments and its input."""

import sys
from pathlib import Path

import msgspec

if __name__ == "__main__":
    arguments = Path("/proc/self/cmdline").read_bytes().decode()
    report = {"arguments": arguments, "input": sys.stdin.buffer.read().decode()}
    sys.stdout.buffer.write(msgspec.json.encode(report))
    sys.stdout.buffer.flush()
