"""Any history becomes a request that the vendor's own types accept and that obeys the rules of its API."""

from typing import Any

import pytest
from dialects import ROWS
from histories import histories, names, said
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luxx.providers.adapter import CompletionRequest
from luxx.wire.tool import ToolSpec

pytestmark = pytest.mark.heavy

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1}},
    "required": ["city"],
}

tools = st.builds(ToolSpec, name=names, description=said, parameters=st.just(SCHEMA))


@st.composite
def requests(draw: st.DrawFn, models: list[str]) -> CompletionRequest:
    return CompletionRequest(
        model=draw(st.sampled_from(models)),
        messages=draw(histories()),
        tools=draw(st.lists(tools, max_size=2, unique_by=lambda tool: tool.name)),
        thinking_enabled=draw(st.booleans()),
        temperature=draw(st.none() | st.floats(0, 2)),
        max_tokens=draw(st.none() | st.integers(1, 100_000)),
        response_schema=draw(st.none() | st.just(SCHEMA)),
        caches_prompt=draw(st.booleans()),
    )


@pytest.mark.parametrize("dialect", ROWS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_any_history_gives_a_request_that_obeys_the_vendors_types_and_rules(
    dialect: str, data: st.DataObject
) -> None:
    row = ROWS[dialect]
    asked = data.draw(requests(row.models))
    provider = data.draw(st.sampled_from(row.provider_types))

    sent = row.body(asked, provider)

    row.rules(row.accepts(sent, provider), asked)
