"""The life of a pattern in PostgreSQL, while two servers look at the same ended runs."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess
from sqlalchemy import create_engine, text
from store.databases import new_database

from luxx.providers.scripted import Finish, Rule, Text, When
from patterns.test_learning import (
    CHART,
    LATER,
    READER,
    SECRETS,
    USAGE,
    WRITTEN,
    calls,
    connect,
    given,
    say,
    say_and_decide,
)

pytestmark = pytest.mark.heavy


def test_two_servers_of_one_postgresql_count_each_run_once(tmp_path: Path, postgresql: str) -> None:
    url = new_database(postgresql, "twopatterns")
    environment = {
        "LUXX_DATABASE__URL": url,
        "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
        "LUXX_WORKSPACE__ROOT": str(tmp_path / "workspaces"),
        "LUXX_PATTERNS__WAIT_SECONDS": "0",
    }
    rules = [
        Rule(when=When(system=READER), reply=[Text(text=json.dumps(WRITTEN)), USAGE, Finish()]),
        Rule(when=When(user="chart", has_tool_result=False), reply=[*calls(), Finish(reason="tool_calls")]),
        Rule(reply=[Text(text="Done."), USAGE, Finish()]),
    ]
    with (
        answering(rules) as model,
        ServerProcess(tmp_path / "a", **environment) as one,
        ServerProcess(tmp_path / "b", **environment) as other,
        ApiClient(one, document_of(one)).sign_in() as person,
        ApiClient(other, document_of(other)).sign_in() as elsewhere,
    ):
        connect(person, model)
        person.good("PUT", "/tenant", json={"learn_patterns": True})
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

        def until_looked_at() -> None:
            for _ in range(300):
                with engine.connect() as database:
                    waiting = database.execute(
                        text(
                            "SELECT 1 FROM run_ended WHERE reader = 'patterns' "
                            "UNION ALL SELECT 1 FROM runs WHERE kind = 'pattern' AND finished_at IS NULL"
                        )
                    ).all()
                if not waiting:
                    return
                time.sleep(0.1)
            raise AssertionError("the runs were not looked at in 30 s")

        say(person, CHART)
        until_looked_at()
        # Two runs end at once, and the heartbeats of both servers look at both.
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda who: say(who, CHART), (person, elsewhere)))
        until_looked_at()
        (pattern,) = elsewhere.good("GET", "/patterns")["items"]
        assert (pattern["status"], pattern["success_count"], pattern["usage_count"]) == ("active", 3, 3)
        assert len(person.good("GET", "/runs", params={"kind": "pattern"})["items"]) == 1
        _, answer = say_and_decide(elsewhere, LATER, "use")
        assert given(answer) == [pattern["id"]]
        until_looked_at()
        after = person.good("GET", f"/patterns/{pattern['id']}")
        assert (after["success_count"], after["usage_count"], len(after["sources"])) == (4, 4, 3)
        with engine.connect() as database:
            uses = database.execute(text("SELECT kind, count(*) FROM pattern_uses GROUP BY kind")).all()
            assert {tuple(row) for row in uses} == {("learned", 3), ("used", 1)}
            stored = str(database.execute(text("SELECT * FROM patterns")).all())
        assert not [secret for secret in SECRETS if secret in stored]
        person.good("PUT", f"/patterns/{pattern['id']}", json={"status": "archived"})
        assert elsewhere.good("POST", "/patterns/match", json={"text": LATER})["matches"] == []
        person.good("DELETE", f"/patterns/{pattern['id']}")
        engine.dispose()
