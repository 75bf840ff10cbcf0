"""A redirect is judged like a call of its target: denied, asked about, or followed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from api.server_process import ServerProcess
from web.site import Site, page, redirect, site

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import FINAL_TEXT, answer, asks, open_questions, results, set_rules


class RedirectServer(NamedTuple):
    """A server that may reach two sites: `near` redirects to `far`."""

    server: ServerProcess
    near: Site
    far: Site

    @property
    def near_url(self) -> str:
        return f"http://127.0.0.1:{self.near.port}"

    @property
    def far_url(self) -> str:
        return f"http://127.0.0.1:{self.far.port}"


@contextmanager
def two_sites(folder: Path) -> Iterator[RedirectServer]:
    with site() as near, site() as far:
        allowed = f"127.0.0.1:{near.port},127.0.0.1:{far.port}"
        with ServerProcess(folder, LUXX_TOOLS__WEB_ALLOW_PRIVATE=allowed) as server:
            yield RedirectServer(server, near, far)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedirectServer]:
    with two_sites(tmp_path_factory.mktemp("redirects")) as both:
        yield both


@pytest.fixture
def web(sites: RedirectServer) -> RedirectServer:
    """Both sites in their initial state, without visits."""
    for target_site in (sites.near, sites.far):
        target_site.routes.clear()
        target_site.visits.clear()
    sites.far.routes["*"] = page("<title>Far</title><p>The far page.</p>")
    sites.near.routes |= {
        "/page": page("<title>Near</title><p>The near page.</p>"),
        "/moved": redirect("/page"),
        "/away": redirect(f"{sites.far_url}/leak?of=data"),
        "/twice": redirect("/away", "308 Permanent"),
    }
    return sites


def fetch(url: str, call_id: str = "call-a") -> Call:
    return Call(name="web_fetch", arguments={"url": url}, id=call_id)


def by_call(message: Json) -> dict[str, Json]:
    """Results by their calls, which may end in any order."""
    steps = [step for step in message["steps"] if step["type"] == "tool_result"]
    return {step["id_ref"]: json.loads(step["content"]) for step in steps}


async def ended(ann: AsyncApiClient, *calls: Call) -> list[Json]:
    """The results of a run that makes these calls and asks no question."""
    async with ScriptedProvider(asks(*calls)) as model:
        conversation = await ann.conversation(model.url)
        screen = await ann.wait_for_end((await ann.start_run(conversation))["id"])
        assert "question_asked" not in [frame.event for frame in screen.frames]
        return results((await ann.messages(conversation))[-1])


@pytest.mark.parametrize("path", ["/away", "/twice"], ids=["first hop", "second hop"])
async def test_a_redirect_to_a_denied_address_is_refused_and_recorded(web: RedirectServer, path: str) -> None:
    async with AsyncApiClient(web.server.url) as ann:
        await set_rules(ann, f"deny web_fetch({web.far_url}/*)")
        (refused,) = await ended(ann, fetch(web.near_url + path))
        assert refused["success"] is False
        assert f"{web.near_url}/away redirects to {web.far_url}/leak?of=data" in refused["error"]
        assert f"the user's rule 1 says: deny web_fetch({web.far_url}/*)" in refused["error"]
        assert web.near.visits == ["/away"] if path == "/away" else ["/twice", "/away"]
        assert web.far.visits == []
        (entry, *_) = (await ann.get("/admin/audit", action="tool_call"))["items"]
        assert (entry["detail"]["name"], entry["outcome"]) == ("web_fetch", "refused")
        await set_rules(ann)
        (followed,) = await ended(ann, fetch(web.near_url + path))
        assert followed["data"]["content"] == "The far page."


async def test_a_rule_made_after_a_redirect_was_followed_is_not_evaded_by_the_cache(
    web: RedirectServer,
) -> None:
    async with AsyncApiClient(web.server.url) as ann:
        (followed,) = await ended(ann, fetch(f"{web.near_url}/away"))
        assert followed["data"]["url"] == f"{web.far_url}/leak?of=data"
        await set_rules(ann, f"deny web_fetch({web.far_url}/*)")
        (refused,) = await ended(ann, fetch(f"{web.near_url}/away"))
        assert "redirects to" in refused["error"]
        assert len(web.far.visits) == 1
        await set_rules(ann)


async def test_a_denied_redirect_removes_only_its_own_page_from_a_batch(web: RedirectServer) -> None:
    async with AsyncApiClient(web.server.url) as ann:
        await set_rules(ann, f"deny *_fetch({web.far_url}/*)")
        urls = [f"{web.near_url}{path}" for path in ("/page", "/away", "/moved", "/twice")]
        (batch,) = await ended(ann, Call(name="batch_fetch", arguments={"urls": urls}, id="call-a"))
        entries = batch["data"]["results"]
        assert [entry["success"] for entry in entries] == [True, False, True, False]
        assert all(f"redirects to {web.far_url}" in entry["error"] for entry in entries if entry["error"])
        assert web.far.visits == []
        await set_rules(ann)
        (batch,) = await ended(ann, Call(name="batch_fetch", arguments={"urls": urls}, id="call-a"))
        assert [result["success"] for result in batch["data"]["results"]] == [True] * 4


def tainted_redirects(web: RedirectServer) -> Script:
    """Reads a page, which taints the run; then follows redirects; then requests the target of one
    directly."""
    first = [fetch(f"{web.near_url}/moved", "call-same"), fetch(f"{web.near_url}/away", "call-away")]
    return Script(
        rules=[
            Rule(when=When(has_tool_result=False), reply=[fetch(f"{web.near_url}/page"), Counts()]),
            Rule(when=When(has_tool_result=True, call=1), reply=[*first, Counts()]),
            Rule(
                when=When(has_tool_result=True, call=2),
                reply=[fetch(f"{web.far_url}/leak?of=data", "call-far"), Counts()],
            ),
            Rule(when=When(has_tool_result=True), reply=[Text(text=FINAL_TEXT)]),
        ]
    )


async def test_in_a_tainted_run_a_redirect_to_a_new_host_is_asked_about(web: RedirectServer) -> None:
    async with AsyncApiClient(web.server.url) as ann, ScriptedProvider(tainted_redirects(web)) as model:
        await set_rules(ann, f"allow web_fetch({web.near_url}/*)")
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        async with ann.follow(run["id"]) as stream:
            await stream.until("question_asked")
        assert web.far.visits == []
        (question,) = await open_questions(ann, run["id"])
        assert json.loads(question["arguments"])["url"] == f"{web.far_url}/leak?of=data"
        await answer(ann, question, "once")
        await ann.wait_for_end(run["id"])
        results_by_call = by_call((await ann.messages(conversation))[-1])
        assert results_by_call["call-same"]["data"]["content"] == "The near page."
        assert "to ask for it, call web_fetch with that address" in results_by_call["call-away"]["error"]
        assert results_by_call["call-far"]["data"]["content"] == "The far page."
        assert web.far.visits == ["/leak?of=data"]
        await set_rules(ann)


async def test_a_person_who_approves_a_call_approves_redirects_on_its_host_and_no_other(
    web: RedirectServer,
) -> None:
    script = Script(
        rules=[
            Rule(when=When(has_tool_result=False), reply=[fetch(f"{web.near_url}/page"), Counts()]),
            Rule(
                when=When(has_tool_result=True, call=1),
                reply=[fetch(f"{web.near_url}/moved", "call-b"), fetch(f"{web.near_url}/away", "call-c"),
                       Counts()],
            ),
            Rule(when=When(has_tool_result=True), reply=[Text(text=FINAL_TEXT)]),
        ]
    )  # fmt: skip

    async with AsyncApiClient(web.server.url) as ann, ScriptedProvider(script) as model:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        async with ann.follow(run["id"]) as stream:
            await stream.until("question_asked")
        for question in await open_questions(ann, run["id"]):
            await answer(ann, question, "once")
        await ann.wait_for_end(run["id"])
        results_by_call = by_call((await ann.messages(conversation))[-1])
        assert results_by_call["call-b"]["data"]["content"] == "The near page."
        assert "needs a permission of its own" in results_by_call["call-c"]["error"]
        assert web.far.visits == []


async def test_in_a_direct_call_an_ask_rule_allows_a_redirect_and_a_deny_rule_does_not(
    web: RedirectServer,
) -> None:
    async with AsyncApiClient(web.server.url) as ann:
        body = {"arguments": {"url": f"{web.near_url}/away"}}
        await set_rules(ann, f"ask web_fetch({web.far_url}/*)")
        assert (await ann.post("/tools/web_fetch/execute", body))["success"] is True
        await set_rules(ann, f"deny web_fetch({web.far_url}/*)")
        refused = await ann.post("/tools/web_fetch/execute", body)
        assert "the user's rule 1 says: deny" in refused["error"]
        assert len(web.far.visits) == 1
        await set_rules(ann)
