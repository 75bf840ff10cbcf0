"""Limits that a reader process sets on itself before it reads a document, and the cleanup of its text."""

import logging
import os
import resource
import warnings


def limit(memory: int, seconds: int) -> None:
    """Set kernel limits on address space (bytes) and processor time (seconds), and lower the priority.

    The process can write no files and start no processes afterwards. Also disables logs and warnings.
    """
    os.nice(10)
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 16,
        resource.RLIMIT_NPROC: 0,  # a library would start programs for some PDF filters
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def storable(text: str) -> str:
    """The text without NUL and lone surrogates, which JSON and databases refuse."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "")
