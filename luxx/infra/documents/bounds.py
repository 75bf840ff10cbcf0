"""What a process that reads a document takes from itself before it looks at it. Runs in that process only."""

import logging
import os
import resource
import warnings


def limit(memory: int, seconds: int) -> None:
    """Past these the kernel refuses or kills; core dumps and writing files are off; others go first."""
    os.nice(10)
    wanted = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 16,
        resource.RLIMIT_NPROC: 0,  # for some filters a library would start a program
    }
    for kind, most in wanted.items():
        resource.setrlimit(kind, (most, most))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def storable(text: str) -> str:
    """Without what no JSON and no database takes: NUL and halves of characters."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "")
