"""The commands of `luxx chat` that begin with a slash, and the names that complete their arguments."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from luxx.app.cli.agent_and_conversation_commands import agent_named
from luxx.app.cli.chat import todos
from luxx.app.cli.chat.session import ChatSession, ConversationPage
from luxx.app.cli.chat.window import window_lines
from luxx.app.cli.menu import number_in
from luxx.app.cli.server_api import ObjectWithId
from luxx.app.cli.server_commands import all_items, provider_named
from luxx.domain.agents.models import AgentView
from luxx.errors import InvalidInput, LuxxError
from luxx.providers.models import ProviderView, UpstreamModels

LISTED_CONVERSATIONS = 20
HELP_COLUMN = 28
NONE = "none"
DEFAULT = "default"


class ToolName(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class SlashCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command. `argument` is its argument as the help shows it."""

    name: str
    argument: str
    help_text: str
    run: Callable[["SlashCommands", str], Awaitable[None]]


class SlashCommands:
    """Carries out the commands for one session."""

    def __init__(self, session: ChatSession) -> None:
        self._session = session
        self._listed: list[str] = []
        """The ids of the conversations that /list showed last."""
        self.has_ended = False

    async def run(self, line: str) -> None:
        """Raises LuxxError, also for a command that does not exist; OSError for files."""
        name, _, argument = line.strip().partition(" ")
        command = COMMANDS.get(ALIASES.get(name, name))
        if command is None:
            raise InvalidInput(f"there is no command {name[:50]}; /help lists the commands")
        await command.run(self, argument.strip())

    async def names(self, command: str) -> list[str]:
        """The names that may follow a command."""
        server = self._session.server
        match command:
            case "/agent":
                return [NONE, *(agent.name for agent in await all_items(server, "/agents", AgentView))]
            case "/provider":
                providers = await all_items(server, "/providers", ProviderView)
                return [DEFAULT, *(provider.name for provider in providers)]
            case "/model":
                return [DEFAULT, *(await self._models())]
            case "/tools":
                return ["on", "off", DEFAULT, *(await self._tools())]
            case "/open":
                page = await server.call("GET", "/conversations", ConversationPage, sort="updated")
                return [conversation.title for conversation in page.items if conversation.title]
            case _:
                return []

    def _say(self, text: str) -> None:
        self._session.screen.note(text)

    async def help(self, _argument: str) -> None:
        """Lists the commands and the keys."""
        for command in COMMANDS.values():
            self._say(f"{f'{command.name} {command.argument}':<{HELP_COLUMN}} {command.help_text}")
        for keys, text in KEYS:
            self._say(f"{keys:<{HELP_COLUMN}} {text}")

    async def model(self, name: str) -> None:
        if not name:
            current = self._session.options.get("model", DEFAULT)
            self._say(f"model: {current}; offered: {', '.join(await self._models()) or 'unknown'}")
            return
        self._choose("model", None if name == DEFAULT else name)
        self._say(f"model: {name}")

    async def provider(self, name: str) -> None:
        options = self._session.options
        if not name:
            providers = await all_items(self._session.server, "/providers", ProviderView)
            current = next((one.name for one in providers if one.id == options.get("provider_id")), DEFAULT)
            self._say(f"provider: {current}; yours: {', '.join(one.name for one in providers) or 'none'}")
        elif name == DEFAULT:
            self._choose("provider_id", None)
            self._say("provider: default")
        else:
            provider = await provider_named(self._session.server, name)
            self._choose("provider_id", provider.id)
            self._say(f"provider: {provider.name}")

    async def agent(self, name: str) -> None:
        if not name:
            agents = await all_items(self._session.server, "/agents", AgentView)
            conversation = self._session.conversation
            agent_id = self._session.agent_id if conversation is None else conversation.agent_id
            current = next((one.name for one in agents if one.id == agent_id), NONE)
            self._say(f"agent: {current}; yours: {', '.join(one.name for one in agents)}")
        elif name == NONE:
            await self._session.use_agent(None)
            self._say("agent: none")
        else:
            agent = await agent_named(self._session.server, name)
            await self._session.use_agent(agent.id)
            self._say(f"agent: {agent.name}")

    async def tools(self, argument: str) -> None:
        known = await self._tools()
        match argument:
            case "":
                self._say(f"tools: {_tools_text(self._session.options.get('tools'))}")
                self._say(f"you may use {', '.join(known) or 'none'}")
                return
            case "on" | "off":
                self._choose("tools", argument == "on")
            case "default":
                self._choose("tools", None)
            case _:
                names = argument.replace(",", " ").split()
                unknown = [name for name in names if name not in known]
                if unknown:
                    raise InvalidInput(f"there is no tool {unknown[0][:100]!r} for you; /tools lists yours")
                self._choose("tools", names)
        self._say(f"tools: {argument}")

    async def attach(self, path: str) -> None:
        session = self._session
        if path == NONE:
            session.attachments = []
        elif path:
            await session.attach(Path(path))
        names = ", ".join(file.name for file, _ in session.attachments)
        self._say(f"the next message has {names}" if names else "no file is attached; /attach FILE adds one")

    async def skill(self, name: str) -> None:
        session = self._session
        if name == NONE:
            session.skills = []
        elif name:
            session.skills = list(dict.fromkeys([*session.skills, name]))
        names = ", ".join(session.skills)
        said = f"the next message activates {names}" if names else "no skill is named; /skill NAME names one"
        self._say(said)

    async def new(self, _argument: str) -> None:
        self._session.conversation = None
        self._say("a new conversation begins with the next message")

    async def list_conversations(self, _argument: str) -> None:
        query = {"sort": "updated", "page_size": str(LISTED_CONVERSATIONS)}
        page = await self._session.server.call("GET", "/conversations", ConversationPage, **query)
        self._listed = [conversation.id for conversation in page.items]
        current = self._session.conversation
        for number, one in enumerate(page.items, 1):
            mark = "*" if current is not None and one.id == current.id else " "
            self._say(f"{mark}{number:>2}. {one.title or 'untitled'}")
        self._say("/open NUMBER continues one" if page.items else "you have no conversation yet")

    async def open(self, text: str) -> None:
        if not text:
            raise InvalidInput("name a conversation: a number of /list, a title or an id")
        number = number_in(text, len(self._listed))
        await self._session.open_named(self._listed[number - 1] if number else text)
        await self._session.show_history()
        await self._session.follow_open_run()

    async def queue(self, argument: str) -> None:
        conversation_id, conversation = self._conversation_id, self._session.conversation
        if argument == "resume" and conversation is not None:
            await self._session.resume_queue(conversation)
        elif argument and argument.split()[0] != "drop":
            await self._session.send(argument)  # No answer is shown: nothing has to wait.
        else:
            await self._session.queue.carry_out(conversation_id, argument)

    async def context(self, _argument: str) -> None:
        for line in await window_lines(self._session.server, self._conversation_id):
            self._say(line)

    async def compress(self, argument: str) -> None:
        path = f"/conversations/{self._conversation_id}/compress"
        run = await self._session.server.call("POST", path, ObjectWithId)
        self._say("the model summarises the older messages; Ctrl-C cancels")
        if await self._session.follow_run(run.id) == 0:
            await self.context(argument)

    @property
    def _conversation_id(self) -> str:
        """Raises InvalidInput before the first message."""
        if self._session.conversation is None:
            raise InvalidInput("there is no conversation yet")
        return self._session.conversation.id

    async def todos(self, argument: str) -> None:
        await self._session.queue.todos.carry_out(self._conversation_id, argument)

    async def thinking(self, _argument: str) -> None:
        self._say(self._session.thinking or "the model did not think for the last answer")

    async def exit(self, _argument: str) -> None:
        self.has_ended = True

    def _choose(self, option: str, value: object) -> None:
        """Sets an option of the next messages; None: the default."""
        if value is None:
            self._session.options.pop(option, None)
        else:
            self._session.options[option] = value

    async def _models(self) -> list[str]:
        """The models of the chosen provider, or of the default one; none if it does not list them."""
        server = self._session.server
        provider_id = self._session.options.get("provider_id")
        if provider_id is None:
            providers = await all_items(server, "/providers", ProviderView)
            provider_id = next((one.id for one in providers if one.is_default), None)
        if provider_id is None:
            return []
        try:
            return (await server.call("GET", f"/providers/{provider_id}/models", UpstreamModels)).models
        except LuxxError:
            return []

    async def _tools(self) -> list[str]:
        return [tool.name for tool in await all_items(self._session.server, "/tools", ToolName)]


def _tools_text(choice: object) -> str:
    """The option `tools` of a message as a person writes it."""
    if isinstance(choice, bool):
        return "on" if choice else "off"
    return DEFAULT if choice is None else ", ".join(msgspec.convert(choice, list[str]))


COMMANDS = {
    command.name: command
    for command in (
        SlashCommand(name="/help", argument="", help_text="this list", run=SlashCommands.help),
        SlashCommand(
            name="/model",
            argument="[NAME|default]",
            help_text="the model of the next messages",
            run=SlashCommands.model,
        ),
        SlashCommand(
            name="/provider",
            argument="[NAME|default]",
            help_text="the provider of the next messages",
            run=SlashCommands.provider,
        ),
        SlashCommand(
            name="/agent",
            argument="[NAME|none]",
            help_text="the agent of this conversation",
            run=SlashCommands.agent,
        ),
        SlashCommand(
            name="/tools",
            argument="[on|off|NAMES]",
            help_text="the tools that the model gets",
            run=SlashCommands.tools,
        ),
        SlashCommand(
            name="/attach",
            argument="[FILE|none]",
            help_text="a text, image or PDF for the next message",
            run=SlashCommands.attach,
        ),
        SlashCommand(
            name="/skill",
            argument="[NAME|none]",
            help_text="a skill that the next message activates",
            run=SlashCommands.skill,
        ),
        SlashCommand(name="/new", argument="", help_text="a new conversation", run=SlashCommands.new),
        SlashCommand(
            name="/list",
            argument="",
            help_text="your latest conversations",
            run=SlashCommands.list_conversations,
        ),
        SlashCommand(
            name="/open",
            argument="NUMBER|TITLE",
            help_text="continues another conversation",
            run=SlashCommands.open,
        ),
        SlashCommand(
            name="/queue",
            argument="[TEXT|drop N|resume]",
            help_text="what waits; TEXT is sent after the answer",
            run=SlashCommands.queue,
        ),
        SlashCommand(
            name=todos.COMMAND,
            argument="[done N|add TEXT]",
            help_text="the to-do list; also open N, drop N, rename N TEXT",
            run=SlashCommands.todos,
        ),
        SlashCommand(
            name="/context",
            argument="",
            help_text="how full the context window is",
            run=SlashCommands.context,
        ),
        SlashCommand(
            name="/compress",
            argument="",
            help_text="summarises older messages for the model",
            run=SlashCommands.compress,
        ),
        SlashCommand(
            name="/thinking",
            argument="",
            help_text="what the model thought for the last answer",
            run=SlashCommands.thinking,
        ),
        SlashCommand(name="/exit", argument="", help_text="leaves", run=SlashCommands.exit),
    )
}
ALIASES = {"/quit": "/exit", "/?": "/help"}
KEYS = (
    ("Alt-Enter, \\ at the end", "a new line in the message"),
    ("Ctrl-C", "stops the answer; again: leaves"),
    ("Ctrl-D", "leaves"),
)
