"""Communities: groups of entities that facts connect closely, found by the Louvain method.

`find_communities` runs networkx in a process of its own, because that takes a second for 5,000 entities and
would hold the interpreter's lock. This module is that process: JSON of a `WeightedGraph` on standard input,
JSON of lists of entities on standard output.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec

SECONDS = 60.0
"""Limit of time for one scope."""

SEED = 7
"""The method breaks ties at random; with one seed the same graph has the same communities."""

NAMES_SHOWN = 3
FACTS_SHOWN = 5
SUMMARY_LENGTH = 1_000


class WeightedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """`edges` are pairs of entities with a weight. Smaller communities than `min_size` are left out."""

    edges: list[tuple[int, int, float]]
    resolution: float
    min_size: int


_encode = msgspec.json.Encoder().encode
_graph = msgspec.json.Decoder(WeightedGraph)
_lists = msgspec.json.Decoder(list[list[int]])


def find_communities(graph: WeightedGraph) -> list[list[int]]:
    """The entities of each community, largest first. Blocks until the process ends.

    Raises OSError or subprocess.SubprocessError if it fails or takes too long.
    """
    if not graph.edges:
        return []
    done = subprocess.run(
        [sys.executable, "-P", "-m", "luxx.features.memory.extraction.communities"],
        input=_encode(graph), capture_output=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    return _lists.decode(done.stdout)


def louvain(graph: WeightedGraph) -> list[list[int]]:
    """The communities, in this process."""
    nx: Any = import_module("networkx")  # Only the process that groups loads it.
    whole = nx.Graph()
    weights: dict[tuple[int, int], float] = defaultdict(float)
    for one, other, weight in graph.edges:
        if one != other:
            weights[min(one, other), max(one, other)] += weight
    whole.add_weighted_edges_from((one, other, weight) for (one, other), weight in sorted(weights.items()))
    found: Iterable[set[int]] = nx.community.louvain_communities(
        whole, weight="weight", resolution=graph.resolution, seed=SEED
    )
    groups = [sorted(group) for group in found if len(group) >= graph.min_size]
    return sorted(groups, key=lambda group: (-len(group), group))


def community_name(group: Sequence[int], degrees: Mapping[int, float], names: Mapping[int, str]) -> str:
    """The names of the entities that most facts connect."""
    central = sorted(group, key=lambda entity: (-degrees.get(entity, 0.0), entity))[:NAMES_SHOWN]
    return ", ".join(names[entity] for entity in central)


def community_summary(texts: Iterable[tuple[float, str]]) -> str:
    """The facts of the largest weight, one a line."""
    ranked = sorted(texts, key=lambda item: -item[0])[:FACTS_SHOWN]
    return "\n".join(text for _, text in ranked)[:SUMMARY_LENGTH]


if __name__ == "__main__":
    sys.stdout.buffer.write(_encode(louvain(_graph.decode(sys.stdin.buffer.read()))))
