"""Asks a server for `/health` without a pause, in a process of its own; a line on standard input asks for the
longest wait since the last line, in seconds."""

import http.client
import sys
import threading
import time

PAUSE = 0.01


def watch(address: str) -> None:
    waits = [0.0]

    def ask() -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        while True:
            began = time.monotonic()
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
            waits.append(time.monotonic() - began)
            time.sleep(PAUSE)

    threading.Thread(target=ask, daemon=True).start()
    for _ in sys.stdin:
        count = len(waits)
        while len(waits) <= count:  # The request in progress counts too.
            time.sleep(PAUSE)
        longest, waits[:] = max(waits), [0.0]
        print(longest, flush=True)


if __name__ == "__main__":
    watch(sys.argv[1])
