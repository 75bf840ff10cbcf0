"""A client under test of the conformance suite of MCP: adds the server of a scenario to a running Luxx, signs
in there as a browser would, and calls its tools. Run by the suite with the address of the server.

Environment: LUXX_URL, LUXX_TOKEN, LUXX_HOSTS (a file whose lock keeps the list of allowed hosts whole), and
MCP_CONFORMANCE_* of the suite.
"""

import asyncio
import fcntl
import json
import os
import re
import secrets
import sys
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
MOST_SIGN_INS = 3
RUN_SECONDS = 60.0
ASKING = ("elicitation-sep1034-client-defaults",)
"""Scenarios whose server asks the user something."""

PRIVATE = re.compile(r"(localhost:\d+) is a private address")
NO_REUSE = httpx.Limits(max_keepalive_connections=0)
"""While a client waits for its turn, the server ends connections that are not used."""

SAMPLES = {"string": "a", "number": 5, "integer": 5, "boolean": True, "array": [], "object": {}}
"""An argument of each type."""


class Luxx:
    """Its API, as one user sees it."""

    def __init__(self) -> None:
        headers = {"Authorization": f"Bearer {os.environ['LUXX_TOKEN']}"}
        self._client = httpx.Client(
            base_url=os.environ["LUXX_URL"], headers=headers, timeout=100, limits=NO_REUSE
        )
        self.refusal = ""

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        answer = self._client.request(method, path, json=body, headers=headers)
        print(method, path, answer.status_code, answer.text[:600], file=sys.stderr)
        self.refusal = "" if answer.is_success else answer.text
        return answer.json().get("data") if answer.is_success else None

    def allow(self, host: str) -> None:
        with open(os.environ["LUXX_HOSTS"], "a+") as ports:
            fcntl.flock(ports, fcntl.LOCK_EX)
            ports.seek(0)
            hosts = sorted({*ports.read().split(), host})
            ports.truncate(0)
            ports.write("\n".join(hosts))
            ports.flush()
            self.ask("PUT", "/admin/allowed-hosts", {"hosts": hosts})

    def sign_in(self, name: str) -> bool:
        """Follows the address as a browser does whose user agrees; whether Luxx takes the answer."""
        path = f"/mcp/servers/{name}/connect"
        begun = self.ask("POST", path) or {}
        if host := PRIVATE.search(self.refusal):
            # The authorization server has a port of its own.
            self.allow(host[1])
            begun = self.ask("POST", path) or {}
        address = begun.get("authorization_url")
        if not address:
            return False
        answer = httpx.get(address, follow_redirects=False)
        query = parse_qs(urlsplit(answer.headers.get("Location", "")).query)
        print("consent", address, answer.status_code, query, file=sys.stderr)
        given = {key: query[key][0] for key in ("state", "code", "iss") if key in query}
        return "code" in given and self.ask("POST", "/mcp/oauth/complete", given) is not None


def arguments_of(tool: dict[str, Any]) -> dict[str, Any]:
    """One for each argument that the tool demands."""
    schema = tool["input_schema"]
    properties = schema.get("properties", {})
    return {name: SAMPLES[properties[name].get("type", "string")] for name in schema.get("required", [])}


def call_in_run(luxx: Luxx, tool: str) -> None:
    """Has a model call a tool, whose server asks the user something, and accepts what it proposes."""

    async def work() -> None:
        first = Rule(when=When(has_tool_result=False), reply=[Call(name=tool, arguments={}, id="call-1")])
        async with ScriptedProvider(Script(rules=[first, Rule(reply=[Text(text="Done.")])])) as model:
            await asyncio.to_thread(chat, luxx, tool, model.url)

    asyncio.run(work())


def chat(luxx: Luxx, tool: str, model_url: str) -> None:
    luxx.allow(urlsplit(model_url).netloc)
    provider = {
        "name": model_url,
        "provider_type": "openai",
        "base_url": f"{model_url}/v1",
        "api_key": "sk-a",
    }
    provider_id = luxx.ask("POST", "/providers", {**provider, "default_model": "scripted"})["id"]
    conversation = luxx.ask("POST", "/conversations", {"provider_id": provider_id})["id"]
    message = {"conversation_id": conversation, "content": "Go.", "tools": [tool]}
    run = luxx.ask("POST", "/messages/stream", message, {"accept": "application/json"})["id"]
    ends = time.monotonic() + RUN_SECONDS
    while time.monotonic() < ends:
        for question in luxx.ask("GET", f"/runs/{run}/questions?status=open")["items"]:
            is_asked = question["kind"] == "elicitation"
            given: dict[str, Any] = {"answer": "accept", "arguments": {}} if is_asked else {"answer": "once"}
            luxx.ask("POST", f"/runs/{run}/questions/{question['id']}/answer", given)
        if luxx.ask("GET", f"/runs/{run}")["status"] in ("completed", "failed"):
            return
        time.sleep(0.1)


def main() -> None:
    url = sys.argv[1]
    luxx = Luxx()
    luxx.allow(urlsplit(url).netloc)
    name = f"c{secrets.token_hex(4)}"
    server: dict[str, Any] = {"name": name, "transport": "http", "url": url, "scope": "tenant"}
    if SCENARIO.startswith("auth/"):
        server["credential"] = "per_user"
    if "client_id" in CONTEXT:
        server["oauth"] = {key: CONTEXT[key] for key in ("client_id", "client_secret") if key in CONTEXT}
    luxx.ask("POST", "/mcp/servers", server)
    for _ in range(MOST_SIGN_INS):
        status = luxx.ask("GET", f"/mcp/servers/{name}/status") or {}
        if status.get("status") != "needs_sign_in" or not luxx.sign_in(name):
            break
    calls = CONTEXT.get("toolCalls")
    if calls is None:
        listed = luxx.ask("GET", f"/mcp/servers/{name}/tools") or {"items": []}
        if SCENARIO in ASKING:
            # By hand nobody is asked.
            for tool in listed["items"]:
                call_in_run(luxx, tool["tool_name"])
            listed = {"items": []}
        calls = [
            {"name": tool["name"], "arguments": arguments_of(tool)}
            for tool in listed["items"]
            if tool["enabled"]
        ]
    for call in calls:
        # Luxx refuses null where the tool's schema has no null.
        given = {key: value for key, value in call["arguments"].items() if value is not None}
        path, body = f"/mcp/servers/{name}/tools/call", {"name": call["name"], "arguments": given}
        luxx.ask("POST", path, body)
        status = luxx.ask("GET", f"/mcp/servers/{name}/status") or {}
        if status.get("status") == "needs_sign_in" and luxx.sign_in(name):
            luxx.ask("POST", path, body)
    luxx.ask("DELETE", f"/mcp/servers/{name}")


if __name__ == "__main__":
    main()
