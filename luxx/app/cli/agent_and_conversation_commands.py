"""`luxx agent` (list|show|stats|export|import) and `luxx conversation` (without stats): those of a server,
through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import re
import sys
from pathlib import Path

import msgspec

from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import (
    add_document_commands,
    add_subcommands,
    all_items,
    find_named,
    print_fields,
    write_document,
)
from luxx.domain.agents.document import MAX_CHARACTERS
from luxx.domain.agents.models import AgentView, ImportedAgent
from luxx.domain.conversations.views import ConversationView
from luxx.domain.transfer.document import ImportReport
from luxx.errors import InvalidInput, NotFound
from luxx.infra.documents.yaml_text import dump_yaml
from luxx.runs.agent_use import AgentStats

NOT_IN_FILE_NAME = re.compile(r"[^\w .-]+")
NAME_LENGTH = 60


def add_agent_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    add("list", _list_agents, "list your agents, those shared with you and those that come with Luxx")
    show = add("show", _show_agent, "show an agent")
    show.add_argument("agent", help="its name or id")
    stats = add("stats", _show_stats, "show how often an agent was used, how well, and at what cost")
    stats.add_argument("agent", help="its name or id")
    add_document_commands(
        add, "agent", "/agents", MAX_CHARACTERS, ImportedAgent, agent_named, note=_note_rules
    )


async def _list_agents(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for agent in await all_items(server, "/agents", AgentView):
        owner = "shipped" if agent.is_shipped else "shared" if agent.is_shared else "own"
        owner = owner if agent.project_id is None else f"project:{agent.project_id}"
        print_fields(agent.id, agent.name, owner, agent.role)


async def _show_agent(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    # YAML escapes control characters, which could change the terminal.
    sys.stdout.write(dump_yaml(msgspec.to_builtins(await agent_named(server, options.agent))))


async def _show_stats(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    agent = await agent_named(server, options.agent)
    stats = await server.call("GET", f"/agents/{agent.id}/stats", AgentStats)
    sys.stdout.write(dump_yaml(msgspec.to_builtins(stats)))


def _note_rules(agent: ImportedAgent) -> None:
    """Says which permission rules came with an agent."""
    if agent.rules:
        rules = ", ".join(f"{rule.action} {rule.tool}({rule.pattern})" for rule in agent.rules)
        text = f"The document brought permission rules for turns of this agent: {rules}"
        print(CONTROL_CHARACTERS.sub("", text), file=sys.stderr)


async def agent_named(server: ServerApi, name_or_id: str) -> AgentView:
    """The agent with this id or name. Raises NotFound, and InvalidInput with the ids if there are several."""
    agents = await all_items(server, "/agents", AgentView)
    agent = find_named(agents, name_or_id, lambda agent: agent.name, "agents")
    if agent is None:
        raise NotFound(f"there is no agent {name_or_id.strip()[:100]!r}; `luxx agent list` lists yours")
    return agent


def add_conversation_commands(parser: argparse.ArgumentParser) -> None:
    add = add_subcommands(parser)
    add("list", _list_conversations, "list your conversations, newest first")
    show = add("show", _show_conversation, "show a conversation")
    show.add_argument("conversation", help="its title or id")
    show.add_argument("--json", action="store_true", help="with all branches, as `export` writes it")
    export = add(
        "export", _export_conversations, "write a conversation to a file, or all of them to a directory"
    )
    export.add_argument("conversation", nargs="?", help="its title or id")
    export.add_argument("--all", type=Path, metavar="DIR", help="write all conversations to this directory")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: stdout")
    export.add_argument("--format", choices=["json", "md"], default="json")
    import_parser = add("import", _import_conversations, "import conversations of Luxx, ChatGPT or Claude")
    import_parser.add_argument("file", nargs="+", type=Path, help="a JSON file, or the ZIP file of an export")


async def conversation_named(server: ServerApi, name: str) -> ConversationView:
    """The conversation with this title or id. Raises NotFound, InvalidInput."""
    conversations = await all_items(server, "/conversations", ConversationView)
    found = find_named(conversations, name, lambda one: one.title, "conversations")
    if found is None:
        raise NotFound(
            f"there is no conversation {name.strip()[:100]!r}; `luxx conversation list` lists yours"
        )
    return found


async def _list_conversations(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for one in await all_items(server, "/conversations", ConversationView):
        print(CONTROL_CHARACTERS.sub("", f"{one.id}\t{one.updated_at:%Y-%m-%d %H:%M}\t") + _line(one.title))


async def _show_conversation(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    conversation = await conversation_named(server, options.conversation)
    shown = await server.document(
        f"/conversations/{conversation.id}/export", format="json" if options.json else "md"
    )
    # JSON escapes control characters, which could change the terminal.
    text = (
        shown if options.json else "\n".join(CONTROL_CHARACTERS.sub("", line) for line in shown.split("\n"))
    )
    sys.stdout.write(text.rstrip("\n") + "\n")


async def _export_conversations(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    if (options.all is None) == (options.conversation is None):
        raise InvalidInput("name one conversation, or a directory for all of them (--all DIR)")
    if options.all is None:
        conversation = await conversation_named(server, options.conversation)
        document = await _document(server, conversation, options.format)
        write_document(document, options.output)
        return
    if options.output is not None:
        raise InvalidInput("--output is for one conversation; --all names the directory")
    options.all.mkdir(parents=True, exist_ok=True)
    conversations = await all_items(server, "/conversations", ConversationView)
    for one in conversations:
        title = NOT_IN_FILE_NAME.sub("", one.title).strip(" .")[:NAME_LENGTH].strip() or "conversation"
        document = await _document(server, one, options.format)
        write_document(document, options.all / f"{title} {one.id}.{options.format}")
    print(f"{len(conversations)} conversations are in {options.all}")


async def _document(server: ServerApi, conversation: ConversationView, format_: str) -> str:
    return await server.document(f"/conversations/{conversation.id}/export", format=format_)


async def _import_conversations(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    for file in options.file:
        report = await server.call("POST", "/conversations/import", ImportReport, file.read_bytes())
        print(f"{file}: {report.conversations} conversations, {report.messages} messages")
        for lost in report.lost:
            print(f"  lost of {_line(lost.conversation)}: {lost.count} {_line(lost.what)}")
        for skipped in report.skipped:
            print(f"  skipped {_line(skipped.title)}: {_line(skipped.reason)}")


def _line(text: str) -> str:
    return CONTROL_CHARACTERS.sub("", " ".join(text.split()))
