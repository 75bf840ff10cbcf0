"""The agents that come with Luxx: which requests ask for each, their tools and their rules."""

import pytest

from luxx.domain.agents.document import AgentDocument, shipped_documents
from luxx.domain.routing.matching import RoutedItem, Router
from luxx.tools.builtin import builtin_tools

AGENTS = shipped_documents()
CHANGING = {"file_write", "file_edit", "file_multi_edit", "shell_execute", "python_execute"}
ELSEWHERE = {"knowledge_search", "memory_search", "python_execute", "shell_execute"}
"""Tools that other packages bring, or that need a sandbox."""

ASKS_FOR = {
    "explorer": ["Explore the workspace and tell me how the code is structured", "探索工作区，说明代码结构"],
    "researcher": ["Research the market of heat pumps and find sources", "帮我调研热泵市场并查资料"],
    "coder": ["Add a feature that exports CSV and write unit tests for it", "添加功能并编写单元测试"],
    "reviewer": ["Please review this pull request and give a second opinion", "请做代码评审，检查错误"],
    "operator": ["Deploy version 2 and restart the service", "部署新版本并重启服务"],
    "code": ["Refactor this module and fix the bug", "重构这个模块并修复bug"],
    "plan": ["Make a plan and carry it out step by step", "制定计划并分步执行"],
}


def routed(name: str, agent: AgentDocument) -> RoutedItem:
    return RoutedItem(
        kind="agent",
        name=agent.name,
        description=agent.description,
        id=name,
        scope="system",
        trigger_type=agent.trigger_type,
        triggers=tuple(agent.trigger_patterns),
    )


@pytest.mark.parametrize("name", ASKS_FOR)
def test_requests_in_english_and_chinese_reach_the_agent_that_they_ask_for(name: str) -> None:
    router = Router([routed(each, agent) for each, agent in AGENTS.items()])
    for text in ASKS_FOR[name]:
        found = router.match(text)
        best = found.ranked[0]
        assert (best.item.id, best.score >= found.threshold) == (name, True), (text, best)
    unrelated = router.match("Good morning, how was your weekend?")
    assert not [each for each in unrelated.ranked if each.score >= unrelated.threshold]


def test_shipped_agents_have_tools_that_exist_and_differ_in_name_and_color() -> None:
    known = {tool.name for tool in builtin_tools()} | ELSEWHERE
    for agent in AGENTS.values():
        assert set(agent.tools or ()) <= known, agent.name
        assert {rule.tool for rule in agent.rules} <= known
        assert not [rule for rule in agent.rules if rule.action == "allow"], "they allow nothing"
    assert (
        len({agent.name for agent in AGENTS.values()}) == len({agent.color for agent in AGENTS.values()}) == 8
    )
    for name in ("explorer", "researcher", "reviewer"):
        denied = {rule.tool for rule in AGENTS[name].rules if rule.action == "deny" and rule.pattern == "*"}
        assert denied == CHANGING
        assert not CHANGING & set(AGENTS[name].tools or ())
