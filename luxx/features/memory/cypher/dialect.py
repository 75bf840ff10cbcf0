"""SQL as SQLite and PostgreSQL write it, and the values that a statement binds."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from luxx.features.memory.cypher.schema import LABELS, EdgeType, Label, ValueType
from luxx.infra.store.engine import CASEFOLD_FUNCTION

CASTS = {
    ValueType.STRING: "TEXT",
    ValueType.INTEGER: "BIGINT",
    ValueType.FLOAT: "DOUBLE PRECISION",
    ValueType.BOOLEAN: "BOOLEAN",
    ValueType.TIME: "TIMESTAMP",
    ValueType.LIST: "TEXT",
    ValueType.NODE: "BIGINT",
    ValueType.EDGE: "BIGINT",
    ValueType.NULL: "TEXT",
}
ANY_COUNT = 2**63 - 1
SCOPES = "scopes"


class Sql:
    """Writes one statement, in which every node and edge is of one of the scopes.

    `fold` makes names comparable.
    """

    def __init__(self, dialect: str, scopes: Sequence[int], fold: Callable[[str], str]) -> None:
        self.is_sqlite = dialect == "sqlite"
        self._fold = fold
        self.parameters: dict[str, Any] = {
            SCOPES: json.dumps(list(scopes)) if self.is_sqlite else list(scopes)
        }

    def bind(self, value: Any, type_: ValueType) -> str:
        """The place of a value in the statement."""
        name = f"p{len(self.parameters)}"
        place = self._place(name)
        if isinstance(value, datetime):
            value = value.replace(tzinfo=None)
            if self.is_sqlite:
                self.parameters[name] = value.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26)
                return place
        self.parameters[name] = value
        return f"CAST({place} AS {CASTS[type_]})"

    def folded(self, name: str) -> str:
        """A name as the index of entities has it."""
        return self.bind(self._fold(name), ValueType.STRING)

    def _place(self, name: str) -> str:
        return f":{name}" if self.is_sqlite else f"%({name})s"

    def null(self, type_: ValueType) -> str:
        return f"CAST(NULL AS {CASTS[type_]})"

    def as_type(self, sql: str, type_: ValueType) -> str:
        return f"CAST({sql} AS {CASTS[type_]})"

    def join(self, table: str, row: str, condition: str, *, is_start: bool = False) -> str:
        """A table of which only rows of the scopes that meet the condition are read. `is_start`: an index may
        find the rows by their scope; else the condition does. SQLite has no statistics, and prefers an index
        of more columns, unless a sign hides the column."""
        return f"{table} {row} ON {condition} AND {self.scoped(row, is_start=is_start)}"

    def scoped(self, row: str, *, is_start: bool = False) -> str:
        """The condition that a row is of one of the scopes."""
        if self.is_sqlite:
            sign = "" if is_start else "+"
            return f"{sign}{row}.scope_id IN (SELECT value FROM json_each({self._place(SCOPES)}))"
        return f"{row}.scope_id = ANY({self._place(SCOPES)})"

    @property
    def then(self) -> str:
        """Joins in the order of the text: the walk begins where an index finds few rows."""
        return " CROSS JOIN " if self.is_sqlite else " JOIN "

    def read(self, kind: Label | EdgeType, key: str, value: str) -> str:
        """A value of the node or edge with a key; `value` names the columns of its row `x`."""
        condition = kind.condition.replace("{row}", "x") if isinstance(kind, Label) else ""
        if condition:
            condition = f" AND {condition}"
        return f"(SELECT {value} FROM {kind.table} x WHERE x.id = {key} AND {self.scoped('x')}{condition})"

    def uid(self, label: str, key: str) -> str:
        """The id that people see of the node that stands for a row."""
        kind = LABELS[label]
        if label != "Entity":
            return f"(SELECT n.uid FROM {kind.table} n WHERE n.id = {key} AND {self.scoped('n')})"
        return (
            f"(SELECT n.uid FROM entities m{self.then}entities n ON n.id = COALESCE(m.canonical_id, m.id) "
            f"WHERE m.id = {key} AND {self.scoped('m')} AND {self.scoped('n')})"
        )

    def ordered(self, sql: str, type_: ValueType) -> str:
        """A value as it is ordered: texts by their characters, not by a language."""
        return f'{sql} COLLATE "C"' if type_ is ValueType.STRING and not self.is_sqlite else sql

    def lower(self, sql: str) -> str:
        return f"{CASEFOLD_FUNCTION if self.is_sqlite else 'lower'}({sql})"

    def text_test(self, operator: str, left: str, right: str) -> str:
        match operator:
            case "STARTS WITH":
                return f"(substr({left}, 1, length({right})) = {right})"
            case "ENDS WITH":
                end = f"substr({left}, length({left}) - length({right}) + 1)"
                return f"(CASE WHEN length({left}) >= length({right}) THEN {end} = {right} " + (
                    f"WHEN length({left}) < length({right}) THEN 1 = 0 END)"
                )
            case _:
                position = "instr" if self.is_sqlite else "strpos"
                return f"({position}({left}, {right}) > 0)"

    def in_texts(self, text: str, texts: str) -> str:
        if self.is_sqlite:
            return f"EXISTS (SELECT 1 FROM json_each({texts}) j WHERE j.value = {text})"
        elements = f"json_array_elements_text(CAST({texts} AS JSON))"
        return f"EXISTS (SELECT 1 FROM {elements} j(value) WHERE j.value = {text})"

    def time_text(self, sql: str) -> str:
        text = (
            f"replace({sql}, ' ', 'T') || 'Z'"
            if self.is_sqlite
            else f"""to_char({sql}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
        )
        return f"replace({text}, '.000000', '')"

    def json_value(self, sql: str, type_: ValueType) -> str:
        """A value as a part of a JSON value."""
        match type_:
            case ValueType.TIME:
                return self.time_text(sql)
            case ValueType.BOOLEAN if self.is_sqlite:
                return f"json(CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' ELSE 'null' END)"
            case ValueType.LIST:
                return f"json({sql})" if self.is_sqlite else f"CAST({sql} AS JSON)"
            case _:
                return sql

    def json_object(self, parts: dict[str, str]) -> str:
        """An object as text; the names are those of properties."""
        function = "json_object" if self.is_sqlite else "json_build_object"
        arguments = ", ".join(f"'{name}', {sql}" for name, sql in parts.items())
        return f"CAST({function}({arguments}) AS TEXT)"

    def json_list(self, sql: str, type_: ValueType, *, distinct: bool) -> str:
        """All values but null of a group as the text of a list."""
        function = "json_group_array" if self.is_sqlite else "json_agg"
        value = self.json_value(sql, type_)
        if distinct:
            # A list of texts can be compared; SQLite's booleans are read as such again.
            value = f"DISTINCT {sql if type_ is ValueType.BOOLEAN else value}"
        values = f"{function}({value}) FILTER (WHERE {sql} IS NOT NULL)"
        return f"COALESCE(CAST({values} AS TEXT), '[]')"
