"""The row of the graph: an anchored query, of the service and over HTTP, against the same SQL by hand on the
same database. The target is that of the query alone: a request costs what every request costs."""

import asyncio
import contextlib
import http.client
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from sqlalchemy.engine import make_url

from luxx.domain.accounts.caller import Caller
from luxx.features.memory.graph import GraphQuery, GraphService
from luxx.features.memory.lexical import memory_name
from luxx.features.memory.models import EntityRow, FactRow, MemoryScopeRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine
from luxx.tools.core import CommandPermission
from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.processes import Api, MeasuredServer, luxx_server
from tests.bench.upstream import Upstream

ENTITIES = 10_000
FACTS = 50_000
QUERIES = 300
ADMIN = Caller(
    user_id=1, tenant_id=1, username="admin", permission_level=CommandPermission.ADMIN, sign_in_id="bench"
)
"""The first user, whose memory has the graph."""

ALLOWED_MS = 2.0
"""What a query may cost besides twice its SQL: the scopes, compiling, a thread, the values of its rows."""

# The signs keep SQLite from reading all facts of the scope.
QUERY = "MATCH (a:Entity {name: $name})-[r:RELATES_TO]->(b) RETURN b.name, r.fact ORDER BY r.fact"
BY_HAND = """
SELECT b.name, f.text FROM entities a
JOIN facts f ON f.subject_id = a.id AND +f.scope_id = a.scope_id AND +f.expired_at IS NULL
JOIN entities b ON b.id = f.object_id
WHERE a.scope_id = ? AND a.folded = ? AND +a.canonical_id IS NULL ORDER BY f.text LIMIT 201
"""


async def graph_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """CPU of one query of what is one fact away from an entity, in a graph of 50,000 facts."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-graph-")))
        url = f"sqlite:///{folder}/graph.db"
        luxx = stack.enter_context(luxx_server({"LUXX_DATABASE__URL": url}))
        api = await asyncio.to_thread(Api, luxx.port)
        scope = await asyncio.to_thread(_fill, url)
        database = stack.enter_context(contextlib.closing(sqlite3.connect(folder / "graph.db")))
        store = stack.enter_context(contextlib.closing(Store(open_engine(make_url(url)))))
        graph = stack.enter_context(contextlib.closing(GraphService(store, folder)))
        for number in range(rounds + 1):
            names = [
                f"entity {random.Random(at + number * QUERIES).randrange(ENTITIES)}" for at in range(QUERIES)
            ]
            floor, expected = _by_hand(database, scope, names)
            cost, answers = await _by_service(graph, names)
            request, answered = await asyncio.to_thread(_over_http, luxx, api.token, names)
            if answers != expected or answered != expected:
                raise Broken("the query and the SQL by hand have different rows")
            if number > 0:  # the first round warms up
                figures.add("graph", "anchored query, SQL by hand", floor, "ms")
                figures.add("graph", "anchored query, luxx", cost, "ms")
                figures.add("graph", "anchored query, luxx over HTTP", request, "ms")
                name = f"anchored query, (luxx - {ALLOWED_MS:g} ms) / SQL by hand"
                figures.add("graph", name, max(0.0, cost - ALLOWED_MS) / floor, "×", at_most=2)
                yield
        api.close()


def _by_hand(database: sqlite3.Connection, scope: int, names: list[str]) -> tuple[float, list[Any]]:
    begin = time.process_time()
    found = [database.execute(BY_HAND, (scope, memory_name(name))).fetchall() for name in names]
    cost = (time.process_time() - begin) / len(names) * 1e3
    return cost, [[list(row) for row in rows] for rows in found]


async def _by_service(graph: GraphService, names: list[str]) -> tuple[float, list[Any]]:
    begin = time.process_time()
    found = [await graph.query(ADMIN, GraphQuery(query=QUERY, parameters={"name": name})) for name in names]
    cost = (time.process_time() - begin) / len(names) * 1e3
    return cost, [result.rows for result in found]


def _over_http(server: MeasuredServer, token: str, names: list[str]) -> tuple[float, list[Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    answers: list[bytes] = []
    begin = server.cpu()
    for name in names:
        body = json.dumps({"query": QUERY, "parameters": {"name": name}})
        connection.request("POST", "/graph/query", body, headers)
        answers.append(connection.getresponse().read())
    cost = (server.cpu() - begin) / len(names) * 1e3
    connection.close()
    return cost, [json.loads(answer)["data"]["rows"] for answer in answers]


def _fill(url: str) -> int:
    """Adds the graph to the memory of the first user; returns the id of its scope."""
    random_, now = random.Random(1), utc_now()
    engine = open_engine(make_url(url))
    with engine.begin() as connection:
        scope = {"tenant_id": 1, "kind": "user", "user_id": 1, "created_at": now}
        key = connection.execute(insert(MemoryScopeRow), scope).inserted_primary_key
        assert key is not None
        common = {"scope_id": key[0], "created_at": now}
        entities = [
            {
                **common, "id": number + 1, "uid": new_id(), "name": f"entity {number}", "type": "thing",
                "folded": f"entity {number}", "aliases": "[]", "summary": "", "updated_at": now,
            }
            for number in range(ENTITIES)
        ]  # fmt: skip
        facts = [
            {
                **common, "uid": new_id(), "text": f"fact {number}", "category": "knowledge",
                "subject_id": random_.randint(1, ENTITIES), "object_id": random_.randint(1, ENTITIES),
                "predicate": "knows", "origin": "model", "trusted": True, "pinned": False, "weight": 1.0,
            }
            for number in range(FACTS)
        ]  # fmt: skip
        connection.execute(insert(EntityRow), entities)
        connection.execute(insert(FactRow), facts)
    engine.dispose()
    return int(key[0])
