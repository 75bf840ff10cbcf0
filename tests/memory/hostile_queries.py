"""Texts that a graph query must refuse or answer without anything of others: generated from parts of Cypher,
SQL and what confuses parsers."""

import random

WORDS = (
    "MATCH", "OPTIONAL MATCH", "WHERE", "RETURN", "WITH", "(n)", "(n:Entity)", "-[r:RELATES_TO]->",
    "-[*1..4]-", "--", ";", "'", '"', "`", "\\", "UNION", "DELETE", "SET n.name = 'x'", "CREATE (x)",
    "DROP TABLE facts", "' OR 1=1 --", "/*", "*/", "//", "n.scope_id", "n.tenant_id", "n.name", "id(n)",
    "$p", "$scopes", ":scopes", "%(scopes)s", "{name: 'x'}", "count(*)", "collect(n)", "AS n",
    "ORDER BY n.name", "LIMIT 5", "SKIP 1", "IN", "[1, 'a']", "NOT", "AND", "OR", "IS NULL", "<>", "=", "(",
    ")", "null", '\x00', '\U0001f600', '\ud800', "1e999", "CALL { MATCH (n) RETURN n }", "FOREACH",
    "LOAD CSV", "pg_sleep(9)", "load_extension('x')", ",", ".", "a", "n",
)  # fmt: skip


def hostile_text(seed: int) -> str:
    random_ = random.Random(seed)
    if seed % 3:
        parts = ["MATCH (n)", *random_.choices(WORDS, k=random_.randint(0, 5)), "RETURN n"]
        random_.random() < 0.3 and random_.shuffle(parts)
    else:
        parts = random_.choices(WORDS, k=random_.randint(1, 25))
    return " ".join(parts)
