"""Asks a server for `/health` without a pause, in a process of its own; a line on standard input asks for the
longest wait since the last line, in seconds.

Of a wait counts what the server's process worked meanwhile: other processes, which only make it longer, do
not count.
"""

import http.client
import os
import sys
import threading
import time

PAUSE = 0.01


TICK = 1 / os.sysconf("SC_CLK_TCK")


def worked(pid: str) -> float:
    """The processor time of the process, in seconds: of all its threads."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def watch(address: str, pid: str) -> None:
    waits = [0.0]

    def ask() -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        while True:
            began, before = time.monotonic(), worked(pid)
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
            waits.append(min(time.monotonic() - began, worked(pid) - before))
            time.sleep(PAUSE)

    threading.Thread(target=ask, daemon=True).start()
    for _ in sys.stdin:
        count = len(waits)
        while len(waits) <= count:  # The request in progress counts too.
            time.sleep(PAUSE)
        longest, waits[:] = max(waits), [0.0]
        print(longest, flush=True)


if __name__ == "__main__":
    watch(*sys.argv[1:])
