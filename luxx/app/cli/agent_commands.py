"""`luxx agent list|show|export|import`: agents of a server, through its HTTP API.

Exit codes: 0 done; 1 refused or unreachable (it prints the reason); 2 wrong options.
"""

import argparse
import sys

import msgspec

from luxx.app.cli.screen import CONTROL_CHARACTERS, Screen
from luxx.app.cli.server_api import ServerApi
from luxx.app.cli.server_commands import (
    AddCommand,
    add_document_commands,
    add_subcommands,
    all_items,
    find_named,
    print_fields,
)
from luxx.domain.agents.document import MAX_CHARACTERS
from luxx.domain.agents.models import AgentView, ImportedAgent
from luxx.errors import NotFound
from luxx.infra.documents.yaml_text import dump_yaml


def add_agent_commands(parser: argparse.ArgumentParser, add_command: AddCommand) -> None:
    add = add_subcommands(parser, add_command)
    add("list", _list, "list your agents, those shared with you and those that come with Luxx")
    show = add("show", _show, "show an agent")
    show.add_argument("agent", help="its name or id")
    add_document_commands(
        add, "agent", "/agents", MAX_CHARACTERS, ImportedAgent, agent_named, note=_note_rules
    )


async def _list(server: ServerApi, _screen: Screen, _options: argparse.Namespace) -> None:
    for agent in await all_items(server, "/agents", AgentView):
        owner = "shipped" if agent.is_shipped else "shared" if agent.is_shared else "own"
        print_fields(agent.id, agent.name, owner, agent.role)


async def _show(server: ServerApi, _screen: Screen, options: argparse.Namespace) -> None:
    # YAML escapes control characters, which could change the terminal.
    sys.stdout.write(dump_yaml(msgspec.to_builtins(await agent_named(server, options.agent))))


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
