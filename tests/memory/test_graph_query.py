"""Graph queries: what is refused and how, limits, hostile texts, and the plans of SQL."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory.graph_samples import DAY, sample_graph
from memory.hostile_queries import hostile_text
from migrated_databases import POSTGRESQL_HEAVY, new_ready_database, prepare_at
from sqlalchemy import Engine, insert

from luxx.domain.accounts.models import Tenant
from luxx.errors import InvalidInput
from luxx.features.memory.cypher.compiler import compile_query
from luxx.features.memory.cypher.syntax import QueryRefused
from luxx.features.memory.graph_query import QueryTimeout, run_query
from luxx.features.memory.graph_tools import untrusted_fact
from luxx.features.memory.lexical import memory_name
from luxx.infra.store.engine import open_engine, resolve_url

GRAPH = sample_graph(3, 1)
FOREIGN = "2026-foreign-canary"


@pytest.fixture(scope="module", params=POSTGRESQL_HEAVY)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A database with the graph, and a canary in the scope that is somebody else's."""
    if request.param == "sqlite":
        url = prepare_at(f"sqlite:///{tmp_path_factory.mktemp('graph')}/graph.db")
    else:
        url = new_ready_database(request.getfixturevalue("postgresql"), "graph_query")
    engine = open_engine(resolve_url(url, Path.cwd()))
    with engine.begin() as connection:
        connection.execute(insert(Tenant).values(id=1, name="default", is_default=True, created_at=DAY))
        GRAPH.insert(connection)
        for table, column in (
            ("entities", "name"),
            ("facts", "text"),
            ("episodes", "name"),
            ("communities", "name"),
        ):
            connection.exec_driver_sql(f"UPDATE {table} SET {column} = '{FOREIGN}' WHERE scope_id = 2")
    yield engine
    engine.dispose()


def query(engine: Engine, text: str, limit: int = 200, **parameters: Any) -> list[list[Any]]:
    with engine.begin() as connection:
        return run_query(connection, text, parameters, GRAPH.scopes, limit).rows


REFUSED = [
    ("", 1, 1, "MATCH"),
    ("MATCH (n) DELETE n RETURN n", 1, 11, "RETURN"),
    ("MATCH (n)\nSET n.name = 'x' RETURN n", 2, 1, "WHERE"),
    ("CREATE (n:Entity)", 1, 1, "MATCH"),
    ("MATCH (n) RETURN n UNION MATCH (m) RETURN m", 1, 20, "LIMIT"),
    ("CALL db.labels()", 1, 1, "MATCH"),
    ("MATCH (n) RETURN n; DROP TABLE facts", 1, 21, "the end of the query"),
    ("MATCH (n:Person) RETURN n", 1, 10, "Entity"),
    ("MATCH (a)-[:KNOWS]->(b) RETURN a", 1, 13, "RELATES_TO"),
    ("MATCH (a:Community)-[:MENTIONS]->(b) RETURN a", 1, 1, "(:Episodic)-[:MENTIONS]->(:Entity)"),
    ("MATCH (n:Entity) RETURN n.nome", 1, 27, "name"),
    ("MATCH (n:Entity) RETURN m.name", 1, 25, "n"),
    ("MATCH (n) RETURN upper(n.name)", 1, 18, "toLower"),
    ("MATCH (n) WHERE n.name = $who RETURN n", 1, 26, "$other"),
    ("MATCH (n) WHERE n.name = 5 RETURN n", 1, 24, "a string"),
    ("MATCH (n) WHERE n.name RETURN n", 1, 17, "a comparison"),
    ("MATCH (a)-[*]->(b) RETURN a", 1, 12, "*1..4"),
    ("MATCH (a)-[:RELATES_TO*1..5]->(b) RETURN a", 1, 23, "*1..4"),
    ("MATCH (a)-[*1..4]-(b)-[*1..4]-(c) RETURN a", 1, 1, "labels"),
    ("MATCH (a), (b), (c), (d), (e) RETURN a", 1, 1, "labels"),
    ("MATCH (a)-[r]->(b)-[r]->(c) RETURN a", 1, 19, None),
    ("MATCH (n) RETURN n.name + 'x'", 1, 25, "LIMIT"),
    ("MATCH (n) WITH n.name RETURN 1", 1, 16, "AS and a name"),
    ("MATCH (n) WHERE count(n) > 1 RETURN n", 1, 17, "RETURN"),
    ("MATCH (n) RETURN n ORDER BY n", 1, 29, "n.name"),
    ("MATCH (n) WHERE n.created_at > 'soon' RETURN n", 1, 30, "'2026-05-31'"),
    ("MATCH (n) RETURN n LIMIT -1", 1, 26, None),
    ("MATCH (n) RETURN 'a\u0000b'", 1, 18, None),
    ("MATCH (n) RETURN 99999999999999999999", 1, 18, None),
    ("MATCH (n) RETURN n.name, n.name", 1, 26, "AS and another name"),
    (f"MATCH (n) WHERE {'coalesce(' * 30}n.name{')' * 30} = 'a' RETURN n", 1, 242, None),
    (f"RETURN '{'x' * 4000}'", 1, 1, None),
    (f"RETURN {'[' * 1_900}{']' * 1_900}", 1, 8, None),
    (f"RETURN {'toLower(' * 440}'a'{')' * 440}", 1, 216, None),
    (f"MATCH (n) WITH {'coalesce(' * 390}n.name{')' * 390} AS a RETURN a", 1, 250, None),
]


def test_refused_queries_name_line_column_and_alternatives() -> None:
    for text, line, column, expected in REFUSED:
        with pytest.raises(QueryRefused) as refused:
            compile_query(text, {"other": 1}, dialect="sqlite", scopes=[1], limit=200, fold=memory_name)
        detail = refused.value.detail
        assert (detail["line"], detail["column"]) == (line, column), text
        assert expected is None or expected in detail["expected"], (text, detail["expected"])


def test_results_have_nodes_relationships_lists_and_times(engine: Engine) -> None:
    rows = query(
        engine,
        "MATCH (a:Entity)-[r:RELATES_TO]->(b) WHERE r.created_at >= '2026-01-01' AND a.id = $id "
        "RETURN a, r, collect(b) AS ends, max(r.created_at) AS newest, type(r) AS type "
        "ORDER BY newest LIMIT 1",
        id=query(engine, "MATCH (a)-[:RELATES_TO]->() RETURN a.id ORDER BY a.id LIMIT 1")[0][0],
    )
    ((start, fact, ends, newest, type_),) = rows
    assert start["label"] == "Entity"
    assert start["aliases"] == [start["name"].upper()]
    assert fact["relationship"] == type_ == "RELATES_TO"
    assert fact["start"] == start["id"]
    assert [end["id"] for end in ends] == [fact["end"]]
    assert isinstance(fact["trusted"], bool)
    assert fact["created_at"] == newest
    assert newest.startswith("2026-01-")
    assert newest.endswith("T00:00:00Z")


def test_expired_facts_are_read_only_where_the_query_names_their_end(engine: Engine) -> None:
    known = query(engine, "MATCH ()-[r:RELATES_TO]->() RETURN r.id")
    expired = query(engine, "MATCH ()-[r:RELATES_TO]->() WHERE r.expired_at IS NOT NULL RETURN r.id")
    both = "MATCH ()-[r:RELATES_TO]->() WHERE r.expired_at IS NULL OR r.expired_at IS NOT NULL RETURN r.id"
    assert expired
    assert sorted(known + expired) == sorted(query(engine, both))


def test_a_row_beyond_the_limit_sets_truncated(engine: Engine) -> None:
    with engine.begin() as connection:
        for limit, expected in ((1, True), (200, False)):
            result = run_query(connection, "MATCH (n:Episodic) RETURN n", {}, GRAPH.scopes, limit)
            assert result.truncated is expected
        assert len(run_query(connection, "MATCH (a), (b), (c) RETURN 1", {}, GRAPH.scopes).rows) == 200


def test_a_cross_product_ends_in_time(engine: Engine) -> None:
    started = time.monotonic()
    with pytest.raises(QueryTimeout):
        query(engine, f"MATCH {', '.join(f'({name}:Entity)' for name in 'abcdefgh')} RETURN count(*)")
    assert time.monotonic() - started < 2.2
    # The connection works as before.
    assert query(engine, "MATCH (n:Entity) RETURN count(n)")


def test_sums_and_lists_that_are_too_large_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput):
        query(engine, "MATCH (a), (b) WITH 9223372036854775807 AS big RETURN sum(big)")


def test_hostile_texts_read_nothing_foreign_and_write_nothing(engine: Engine) -> None:
    def counts(connection: Any) -> list[int]:
        tables = ("facts", "entities", "episodes", "communities", "mentions", "memory_scopes")
        return [connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one() for name in tables]

    answered = 0
    with engine.begin() as connection:
        before = counts(connection)
    for seed in range(500):
        text = hostile_text(seed)
        try:
            with engine.begin() as connection:
                rows = run_query(connection, text, {"p": "' OR 1=1 --", "scopes": [2]}, GRAPH.scopes).rows
        except InvalidInput:
            continue
        answered += 1
        assert FOREIGN not in repr(rows), text
    with engine.begin() as connection:
        assert counts(connection) == before
    assert answered >= 20


SHAPES = [
    "MATCH (a:Entity {name: 'Ann'}) RETURN a.type",
    "MATCH (a {id: 'e-1'}) RETURN a.name",
    "MATCH (a:Entity {name: 'Ann'})-[r:RELATES_TO]->(b) RETURN b.name, r.fact",
    "MATCH (a:Entity {name: 'Ann'})<-[r:RELATES_TO]-(b) RETURN b.name",
    "MATCH (a)-[r:RELATES_TO]-(b:Entity {name: 'Ann'}) RETURN a.name",
    "MATCH (a:Entity {name: 'Ann'})-[:RELATES_TO*1..3]-(b) RETURN DISTINCT b.name",
    "MATCH (p:Episodic)-[:MENTIONS]->(e:Entity {name: 'Ann'}) RETURN p.name",
    "MATCH (p:Episodic {id: 'p-1'})-[:MENTIONS]->(e) RETURN e.name",
    "MATCH (e:Entity {name: 'Ann'})-[:BELONGS_TO]->(c)<-[:BELONGS_TO]-(o) RETURN o.name, c.member_count",
    "MATCH (e:Entity {name: 'Ann'}) OPTIONAL MATCH (e)-[r:RELATES_TO]->(b) RETURN e.name, b.name",
    "MATCH (e:Entity {name: 'Ann'}) WITH e MATCH (e)-[:RELATES_TO]-(b) RETURN b.name, count(*)",
]


def test_every_shape_of_query_finds_its_rows_by_indexes(engine: Engine) -> None:
    explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # The tables of a test are so small that reading them whole would be cheaper.
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off; SET LOCAL join_collapse_limit = 1")
        for text in SHAPES:
            statement = compile_query(
                text, {}, dialect=engine.dialect.name, scopes=[1], limit=200, fold=memory_name
            )
            rows = connection.exec_driver_sql(explain + statement.sql, statement.parameters).fetchall()
            plan = [str(row[-1]) for row in rows]
            whole = [line for line in plan if "Seq Scan" in line or _is_whole_scan(line)]
            assert whole == [], (text, plan)
            # Nearly all entities are not merged.
            assert not any("SEARCH n0" in line and "canonical" in line for line in plan), (text, plan)


def test_an_untrusted_fact_is_found_by_an_index_of_such_facts(engine: Engine) -> None:
    statement = untrusted_fact([1, 2]).compile(engine, compile_kwargs={"literal_binds": True})
    explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain}{statement}"))
    assert "ix_facts_untrusted" in plan, plan


def _is_whole_scan(line: str) -> bool:
    """SQLite's name for reading all rows of a table; those of common table expressions are few."""
    return line.startswith("SCAN ") and line.split()[1][0] in "nexm" and "json_each" not in line
