"""Any sequence of send, edit, regenerate, select, delete and fork keeps one consistent tree.

A model of the conversation in this file predicts the tree after each operation, and that the prompt is the
selected path and nothing else.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from branching_client import BranchingClient, ConversationClient, branching_client
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

HISTORIES = settings(
    stateful_step_count=25,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""A failing history is printed with the data to repeat it; shrinking it would take
longer than a test may."""

picks = st.integers(0, 10**6)
words = st.sampled_from(["hello", "why?", "and then", "你好", "fail on purpose"])


class ExpectedMessage(msgspec.Struct):
    """The expected state of a message."""

    parent: str | None
    role: str
    text: str


class Histories(RuleBasedStateMachine):
    """One conversation and its forks, under random operations."""

    client: BranchingClient

    @initialize()
    def send_without_waiting(self) -> None:
        self.chat: ConversationClient = self.client.chat()
        self.said: dict[str, ExpectedMessage] = {}
        self.leaf: str | None = None

    @rule(text=words)
    def send(self, text: str) -> None:
        self._asks(self.leaf, text, {})

    @precondition(lambda self: self.said)
    @rule(text=words, pick=picks)
    def send_below(self, text: str, pick: int) -> None:
        parent = self._one(pick)
        self._asks(parent, text, {"parent_id": parent})

    @precondition(lambda self: self.said)
    @rule(pick=picks)
    def regenerate(self, pick: int) -> None:
        id_ = self._one(pick)
        asked = id_ if self.said[id_].role == "user" else self.said[id_].parent
        assert asked is not None
        answer = self.chat.again(id_)
        self._answered(asked, answer)

    @precondition(lambda self: self.said)
    @rule(text=words, pick=picks)
    def edit(self, text: str, pick: int) -> None:
        asked = [id_ for id_, said in self.said.items() if said.role == "user"]
        id_ = asked[pick % len(asked)]
        requests = len(self.client.upstream.requests)
        new = self.chat.edit(id_, text)
        assert len(self.client.upstream.requests) == requests
        self.said[new["id"]] = ExpectedMessage(self.said[id_].parent, "user", text)
        self.leaf = new["id"]

    @precondition(lambda self: self.said)
    @rule(pick=picks)
    def select(self, pick: int) -> None:
        id_ = self._one(pick)
        below = self._below(id_)
        self.leaf = max(each for each in below if not self._children(each))
        assert self.chat.select(id_) == self.leaf

    @precondition(lambda self: self.said)
    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        id_ = self._one(pick)
        doomed, parent = self._below(id_), self.said[id_].parent
        self.chat.delete(id_)
        self.said = {each: said for each, said in self.said.items() if each not in doomed}
        if self.leaf in doomed:
            leaves = [each for each in self.said if not self._children(each)]
            self.leaf = parent or max(leaves, default=None)

    @precondition(lambda self: self.said)
    @rule(pick=picks, is_entered=st.booleans())
    def fork(self, pick: int, is_entered: bool) -> None:
        """The copy has the path and nothing else; the next operations use the copy or the original."""
        id_ = self._one(pick)
        copy = self.chat.fork(id_)
        path = self._path(id_)
        ids = [message["id"] for message in copy.messages()]
        assert copy.texts() == [self.said[each].text for each in path]
        assert not set(ids) & set(self.said)
        if is_entered:
            parents = [None, *ids]
            self.said = {
                new: ExpectedMessage(parent, self.said[old].role, self.said[old].text)
                for new, parent, old in zip(ids, parents, path, strict=False)
            }
            self.chat, self.leaf = copy, ids[-1]

    @invariant()
    def tree_is_consistent(self) -> None:
        if not hasattr(self, "chat"):
            return
        tree = self.chat.tree()
        nodes = {node["id"]: node for node in tree["nodes"]}
        assert list(nodes) == sorted(self.said)
        for id_, node in nodes.items():
            said = self.said[id_]
            assert (node["parent_id"], node["role"]) == (said.parent, said.role)
            assert node["preview"] == said.text
            assert node["children"] == self._children(id_)
        assert tree["selected_leaf_id"] == self.leaf
        assert tree["selected_path"] == self._path(self.leaf)
        assert (self.leaf is None) == (not self.said)
        assert self.chat.show()["run_id"] is None

    def _asks(self, parent: str | None, text: str, more: dict[str, Any]) -> None:
        run_or_failure = self.client.person.ask(
            "POST", "/messages", json={"conversation_id": self.chat.id, "content": text, **more}
        )
        if run_or_failure.is_success:
            answer = run_or_failure.json()["data"]
        else:
            detail = run_or_failure.json()["detail"]
            assert run_or_failure.status_code == 502, run_or_failure.text
            answer = next(each for each in self.chat.messages() if each["id"] == detail["message_id"])
        self.said[answer["parent_id"]] = ExpectedMessage(parent, "user", text)
        self._answered(answer["parent_id"], answer)

    def _answered(self, asked: str, answer: dict[str, Any]) -> None:
        """The answer has the right parent, and the prompt was the path to the question."""
        assert answer["parent_id"] == asked
        is_failed = self.said[asked].text.startswith("fail")
        assert answer["status"] == ("failed" if is_failed else "complete")
        self.said[answer["id"]] = ExpectedMessage(asked, "assistant", answer["text"])
        self.leaf = answer["id"]
        path = [self.said[each] for each in self._path(asked)]
        assert self.client.prompt() == [(each.role, each.text) for each in path if each.text]

    def _one(self, pick: int) -> str:
        return sorted(self.said)[pick % len(self.said)]

    def _children(self, id_: str) -> list[str]:
        return sorted(each for each, said in self.said.items() if said.parent == id_)

    def _below(self, id_: str) -> set[str]:
        return {each for each in self.said if id_ in self._path(each)}

    def _path(self, id_: str | None) -> list[str]:
        path: list[str] = []
        while id_ is not None:
            path.append(id_)
            id_ = self.said[id_].parent
        return path[::-1]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BranchingClient]:
    with branching_client(tmp_path_factory.mktemp("histories"), is_checked=False) as client:
        yield client


@pytest.mark.parametrize("examples", [4, pytest.param(12, marks=pytest.mark.heavy)])
def test_any_history_keeps_one_tree_and_sends_the_selected_path(
    client: BranchingClient, examples: int
) -> None:
    class HistoriesOfClient(Histories):
        pass

    HistoriesOfClient.client = client
    run_state_machine_as_test(HistoriesOfClient, settings=settings(HISTORIES, max_examples=examples))
