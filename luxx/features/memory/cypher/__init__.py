"""Graph queries: a read-only subset of openCypher, compiled to one SQL statement of SQLite or PostgreSQL.

`parser.py` reads a text by `grammar.lark` into the tree of `syntax.py`; `schema.py` has the labels, types and
properties; `expressions.py`, `patterns.py` and `compiler.py` write the SQL. Everything is pure. The grammar
has no syntax that writes, and every node and edge comes from a subquery that is restricted to the scopes.
"""
