"""Tools that do almost nothing, so that the cost of a call around the tool is measured."""

from luxx.tools.core import Risk
from luxx.tools.factory import tool


@tool()
def bench_one(value: str) -> str:
    """Gives back what it was given."""
    return value


@tool()
def bench_two(value: str) -> int:
    """Tells how long what it was given is."""
    return len(value)


@tool()
def bench_three(value: str) -> str:
    """Gives back what it was given in capitals."""
    return value.upper()


@tool()
def bench_four(value: str) -> list[str]:
    """Splits what it was given into words."""
    return value.split()


@tool(risk=Risk.HIGH)
def bench_risky(value: str) -> str:
    """Gives back what it was given, once a person has allowed it."""
    return value
