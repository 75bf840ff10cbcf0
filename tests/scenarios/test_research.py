"""A model researches a site through a subagent and writes a report, which refers to pages that were read."""

import io
import json
import re
from pathlib import Path

from api.server_process import ServerProcess
from pypdf import PdfReader
from web.site import Site, page, site

from luxx.providers.scripted import Call, Counts, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import set_rules

LEAD, READER = "the lead", "the reader"
PAGES = 40
AT_ONCE = 10
USAGE = Counts(prompt=5, completion=3)


def add_pages(target: Site) -> None:
    for number in range(1, PAGES + 1):
        text = f"<title>Loaf {number}</title><p>Loaf {number} rises for <b>{number} minutes</b>.</p>"
        target.routes[f"/{number}"] = page(text)
    target.routes["*"] = page("nothing here", status="404 Not Found")


def reads(base_url: str, numbers: range) -> list[Rule]:
    """A subagent that reads these pages, ten in a call."""
    batches = [numbers[at : at + AT_ONCE] for at in range(0, len(numbers), AT_ONCE)]
    rules = [
        Rule(
            when=When(system=READER, call=index),
            reply=[
                Call(
                    name="batch_fetch",
                    arguments={"urls": [f"{base_url}/{number}" for number in batch]},
                    id=f"call-read-{index}",
                ),
                USAGE,
            ],
        )
        for index, batch in enumerate(batches, start=1)
    ]
    notes = Text(text="Loaf 1 rises for one minute [S1].")
    return [*rules, Rule(when=When(system=READER, call=len(batches) + 1), reply=[notes, USAGE])]


def research(base_url: str, numbers: range, report: str) -> Script:
    tools = ["batch_fetch"]
    delegate = {"task": "Read the site.", "system_prompt": READER, "tools": tools}
    return Script(
        rules=[
            Rule(
                when=When(system=LEAD, call=1),
                reply=[Call(name="delegate", arguments=delegate, id="call-delegate"), USAGE],
            ),
            Rule(
                when=When(system=LEAD, call=2),
                reply=[
                    Call(
                        name="create_artifact",
                        arguments={"type": "report", "name": "Loaves", "content": report},
                        id="call-report",
                    ),
                    USAGE,
                ],
            ),
            Rule(when=When(system=LEAD, call=3), reply=[Text(text="Here it is."), USAGE]),
            *reads(base_url, numbers),
        ]
    )


def pdf_text(data: bytes) -> str:
    return "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(data)).pages)


async def result_of_report(ann: AsyncApiClient, model: ScriptedProvider) -> Json:
    """Lets the lead work in a new conversation; what its tool call answered."""
    # Without the rule each page after the first one needs an approval, because the run has untrusted content.
    await set_rules(ann, "allow batch_fetch(*)")
    provider_id = await ann.connect(model.url)
    chat = {"provider_id": provider_id, "system_prompt": LEAD}
    conversation = (await ann.post("/conversations", chat))["id"]
    run = await ann.start_run(conversation)
    await ann.wait_for_end(run["id"])
    message = (await ann.messages(conversation))[-1]
    [content] = [
        step["content"]
        for step in message["steps"]
        if step["type"] == "tool_result" and step["id_ref"] == "call-report"
    ]
    return json.loads(content)


async def test_all_references_of_a_report_were_read_and_wrong_citations_are_reported(tmp_path: Path) -> None:
    with site() as started_site:
        add_pages(started_site)
        base_url = f"http://127.0.0.1:{started_site.port}"
        allowed = {"LUXX_TOOLS__WEB_ALLOW_PRIVATE": f"127.0.0.1:{started_site.port}"}
        facts = [f'Loaf {n} [S{n} "rises for {n} minutes"].' for n in range(1, PAGES + 1)]
        wrong = f'Invented [S{PAGES + 1}]. Misquoted [S3 "rises for 4 minutes"].'
        report = "# Loaves\n\n" + "\n\n".join(facts) + f"\n\n# Doubtful\n\n{wrong}\n"
        script = research(base_url, range(1, PAGES + 1), report)
        with ServerProcess(tmp_path, **allowed) as server:
            async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
                result = await result_of_report(ann, model)
                assert result["success"], result
                problems = [one for one in result["data"]["problems"] if one["kind"] == "citation"]
                assert [one["page"] for one in problems] == [2, 2]
                assert f"[S{PAGES + 1}] is no page that was read" in problems[0]["text"]
                assert "Page S3 does not have the words" in problems[1]["text"]
                artifact_id = result["data"]["artifact_id"]
                download = await ann.ask("GET", f"/artifacts/{artifact_id}/download", format="md")
                assert download.status_code == 200
                pdf = await ann.ask("GET", f"/artifacts/{artifact_id}/download")
                assert pdf.status_code == 200, pdf.text
                assert f"[{PAGES}]" in pdf_text(pdf.content)
                assert f"{base_url}/{PAGES}" in pdf_text(pdf.content)
                references = download.text.split("# References\n", 1)[1]
                assert re.findall(r"^(\d+)\. Loaf \d+\. <(.*)>$", references, re.MULTILINE) == [
                    (str(n), f"{base_url}/{n}") for n in range(1, PAGES + 1)
                ]


async def test_a_site_without_pages_gives_no_report(tmp_path: Path) -> None:
    with site() as started_site:
        started_site.routes["*"] = page("nothing here", status="404 Not Found")
        base_url = f"http://127.0.0.1:{started_site.port}"
        allowed = {"LUXX_TOOLS__WEB_ALLOW_PRIVATE": f"127.0.0.1:{started_site.port}"}
        script = research(base_url, range(1, 4), "# Loaves\n\nThey rise [S1].\n")
        with ServerProcess(tmp_path, **allowed) as server:
            async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
                result = await result_of_report(ann, model)
                assert not result["success"]
                assert "no page was read" in result["error"]
                assert (await ann.get("/artifacts"))["items"] == []
