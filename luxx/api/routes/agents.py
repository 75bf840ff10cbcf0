"""`/agents`: templates of agents, their export and import."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta, Struct

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.event_streams import Streams
from luxx.api.http.files import document_response
from luxx.api.http.request_input import (
    OPENAPI_EXTRA,
    TAKES_CUT_TEXT,
    DocumentFormat,
    InjectedCaller,
    PageNumber,
    PageSize,
    document_body,
    parse_document,
)
from luxx.api.routes.messages import InvocationBody, answer_options, check_text
from luxx.domain.agents.document import MAX_CHARACTERS, AgentDocument
from luxx.domain.agents.models import (
    AgentChanges,
    AgentView,
    EnableAgent,
    ImportedAgent,
    NewAgent,
    ProjectId,
)
from luxx.domain.agents.service import AgentService
from luxx.features.chats.service import ChatService
from luxx.infra.store.tables import Uses
from luxx.runs.agent_use import AgentStats
from luxx.runs.models import RunFilter
from luxx.runs.options import NewInvocation
from luxx.runs.routing import MatchedItems, RequestRouter
from luxx.runs.service import RunService
from luxx.wire.run import TitledRun


class MatchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text of a request, as a person would send it, in a project or without one."""

    text: Annotated[str, Meta(min_length=1, max_length=100_000)]
    project_id: ProjectId | None = None


InjectedAgents = NamedDependency[AgentService]


DOCUMENT_BODY = document_body("AgentDocument", "the document of GET /agents/{agent_id}/export")


class AgentController(Controller):
    path = "/agents"
    tags = ("agents",)
    opt = CHAT

    @get()
    async def list_agents(
        self, caller: InjectedCaller, agents: InjectedAgents, page: PageNumber = 1, page_size: PageSize = 20
    ) -> Success[Page[AgentView]]:
        """Your agents and those shared in the tenant, newest first; then the agents that come with Luxx."""
        return page_of(await agents.list_page(caller, page=page, page_size=page_size), page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, agents: InjectedAgents, data: JSONBody[NewAgent]
    ) -> Success[AgentView]:
        """Create an agent. Only an ADMIN may share it, and a shared agent needs shared providers."""
        return success(await agents.create(caller, data), "agent created")

    @get("/{agent_id:int}")
    async def show(
        self, caller: InjectedCaller, agents: InjectedAgents, agent_id: FromPath[int]
    ) -> Success[AgentView]:
        """One agent."""
        return success(await agents.get(caller, agent_id))

    @put("/{agent_id:int}")
    async def change(
        self,
        caller: InjectedCaller,
        agents: InjectedAgents,
        agent_id: FromPath[int],
        data: JSONBody[AgentChanges],
    ) -> Success[AgentView]:
        """Change the given fields of an agent. A run in progress keeps the values it started with.

        Of an agent that another ADMIN shares, an ADMIN may only change `is_shared`."""
        return success(await agents.update(caller, agent_id, data), "agent saved")

    @delete("/{agent_id:int}", status_code=200)
    async def remove(
        self, caller: InjectedCaller, agents: InjectedAgents, agent_id: FromPath[int]
    ) -> Success[Uses]:
        """Delete an agent; an ADMIN also one that another ADMIN shares. What used it stays, keeps its name
        and stops until another agent, or none, is chosen; the answer counts it."""
        return success(await agents.delete(caller, agent_id), "agent deleted")

    @patch("/{agent_id:int}/enable")
    async def enable(
        self,
        caller: InjectedCaller,
        agents: InjectedAgents,
        agent_id: FromPath[int],
        data: JSONBody[EnableAgent],
    ) -> Success[AgentView]:
        """Enable or disable an agent. A disabled one does not answer, and no model is offered it; what has
        chosen it says so until it is enabled or another is chosen."""
        view = await agents.enable(caller, agent_id, is_enabled=data.enabled)
        return success(view, "agent enabled" if data.enabled else "agent disabled")

    @post("/match", status_code=200)
    async def match(
        self,
        caller: InjectedCaller,
        request_router: NamedDependency[RequestRouter],
        data: JSONBody[MatchBody],
    ) -> Success[MatchedItems]:
        """Your enabled agents that share words with a text, the best first, as a message with this text is
        matched. Those at or above `threshold` are what it asks for."""
        return success(await request_router.match(caller, data.text, "agent", data.project_id))

    @get("/{agent_id:int}/uses")
    async def uses(
        self, caller: InjectedCaller, agents: InjectedAgents, agent_id: FromPath[int]
    ) -> Success[Uses]:
        """What has chosen the agent and would stop if it were deleted, of all users. For those who may delete
        it."""
        return success(await agents.uses(caller, agent_id))

    @post("/{agent_id:int}/invoke", status_code=200, opt={TAKES_CUT_TEXT: True})
    async def invoke(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        chats: NamedDependency[ChatService],
        streams: NamedDependency[Streams],
        agent_id: FromPath[int],
        data: JSONBody[InvocationBody],
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Ask an agent once, without a conversation. Answers with the message, when it is complete.

        With `Accept: text/event-stream` the answer is the stream of the run, as of `POST /messages/stream`.
        """
        invocation = await _invocation(request, agent_id, data)
        if "text/event-stream" in request.headers.get("accept", ""):
            return await streams.follow(
                caller, lambda: chats.send_and_watch(caller, invocation, accumulated=accumulated)
            )
        run = await chats.send(caller, invocation)
        message = await chats.answer(caller, run)
        return Response(success(message), status_code=200, media_type="application/json")

    @get("/{agent_id:int}/activities")
    async def activities(
        self,
        caller: InjectedCaller,
        agents: InjectedAgents,
        runs: NamedDependency[RunService],
        agent_id: FromPath[int],
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[TitledRun]]:
        """Your runs with this agent, newest first: in conversations, and called without one."""
        await agents.get(caller, agent_id)
        found = await runs.list_page(caller, RunFilter(agent_id=agent_id), page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @get("/{agent_id:int}/stats")
    async def stats(
        self,
        caller: InjectedCaller,
        agents: InjectedAgents,
        runs: NamedDependency[RunService],
        agent_id: FromPath[int],
    ) -> Success[AgentStats]:
        """How the agent was used in chats, rooms, tasks and by delegation: for its owner and an ADMIN by
        everybody in the tenant, else by you."""
        agent = await agents.get(caller, agent_id)
        return success(await runs.agent_stats(caller, agent_id, is_own=agent.is_own))

    @get("/{agent_id:int}/export")
    async def export(
        self,
        caller: InjectedCaller,
        agents: InjectedAgents,
        agent_id: FromPath[int],
        format: DocumentFormat = "yaml",
    ) -> Response[str]:
        """The agent as a YAML or JSON document, with the names of its providers. Its rules: for its owner."""
        return await document_response(await agents.export(caller, agent_id), format)

    @post("/import", status_code=201, opt={OPENAPI_EXTRA: DOCUMENT_BODY})
    async def import_agent(
        self, request: Request[Any, Any, Any], caller: InjectedCaller, agents: InjectedAgents
    ) -> Success[ImportedAgent]:
        """Create an agent from a document, as YAML or JSON. Providers are found by their names.

        The answer has the permission rules that the document brought. For them, an API key needs the scope
        `admin`, as for PUT /permissions/rules."""
        given = await parse_document(await request.body(), AgentDocument, max_characters=MAX_CHARACTERS)
        return success(await agents.import_agent(caller, given.document, given.wrong), "agent created")


async def _invocation(request: Request[Any, Any, Any], agent_id: int, body: InvocationBody) -> NewInvocation:
    check_text(body.content)
    return NewInvocation(
        agent_id=agent_id,
        text=body.content,
        attachments=[*body.attachments],
        **await answer_options(request, body),
    )
