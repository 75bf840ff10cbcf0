"""Random queries of random graphs give the same results on SQLite, on PostgreSQL and in kglite."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kglite import KnowledgeGraph
from memory.graph_samples import DAY, RandomQuery, SampleGraph, sample_graph
from migrated_databases import new_ready_database, prepare_at
from sqlalchemy import Engine, insert

from luxx.domain.accounts.models import Tenant
from luxx.features.memory.graph_query import run_query
from luxx.infra.store.engine import open_engine, resolve_url

GRAPHS = 20


@pytest.fixture(scope="module")
def graphs() -> list[SampleGraph]:
    return [sample_graph(seed, 1 + 1000 * seed) for seed in range(GRAPHS)]


@pytest.fixture(scope="module")
def engines(
    graphs: list[SampleGraph], postgresql: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Engine]]:
    folder = tmp_path_factory.mktemp("graphs")
    urls = [prepare_at(f"sqlite:///{folder}/graphs.db"), new_ready_database(postgresql, "graphs")]
    engines = [open_engine(resolve_url(url, Path.cwd())) for url in urls]
    for engine in engines:
        with engine.begin() as connection:
            connection.execute(insert(Tenant).values(id=1, name="default", is_default=True, created_at=DAY))
            for graph in graphs:
                graph.insert(connection)
            connection.exec_driver_sql("ANALYZE")
    yield engines
    for engine in engines:
        engine.dispose()


def comparable(rows: Sequence[Sequence[Any]]) -> Counter[str]:
    """Rows without their order, and lists in them too."""
    return Counter(
        repr([sorted(value, key=repr) if isinstance(value, list) else value for value in row]) for row in rows
    )


def compare(seeds: range, graphs: list[SampleGraph], engines: list[Engine]) -> int:
    """Runs a query for each seed; returns how many had rows."""
    peers: dict[int, KnowledgeGraph] = {}
    with_rows = 0
    for seed in seeds:
        number = seed % GRAPHS
        query = RandomQuery(seed).text
        peer = peers.get(number) or peers.setdefault(number, graphs[number].in_kglite())
        peer_query = query.replace(".type", ".kind")
        expected = [list(row.values()) for row in peer.cypher(peer_query, disable_optimizer=True).to_list()]
        for engine in engines:
            with engine.begin() as connection:
                result = run_query(connection, query, {}, graphs[number].scopes, limit=100_000)
            context = f"seed {seed} on {engine.dialect.name}: {query}"
            assert comparable(result.rows) == comparable(expected), context
            if "ORDER BY" in query:
                assert result.rows == expected, context
        with_rows += bool(expected)
    return with_rows


def test_random_queries_give_what_kglite_gives(graphs: list[SampleGraph], engines: list[Engine]) -> None:
    assert compare(range(60), graphs, engines) >= 30


@pytest.mark.heavy
def test_a_thousand_random_queries_give_what_kglite_gives(
    graphs: list[SampleGraph], engines: list[Engine]
) -> None:
    assert compare(range(60, 1060), graphs, engines) >= 500
