"""Tools of a server of the official SDK that asks its user something in the middle of a call."""

from typing import Annotated, Any, Literal

from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import ElicitRequest, ElicitRequestURLParams, InputRequiredResult
from pydantic import BaseModel, Field

PAGE = "https://pay.example/order/7"


class Trip(BaseModel):
    """Where to, and for how many."""

    note: str = Field(max_length=40)
    people: int = Field(ge=1, le=9)
    seat: Literal["window", "aisle"] = "aisle"


class Nothing(BaseModel):
    """A form without values."""


def _ask_trip() -> Elicit[Trip]:
    return Elicit("Where do you want to go?", Trip)


AskedTrip = Annotated[ElicitationResult[Trip], Resolve(_ask_trip)]


def add_asking_tools(server: MCPServer, heard: list[Any]) -> None:
    """`heard`: what the server got of its user."""

    @server.tool()
    async def book(trip: AskedTrip) -> str:
        """Books a trip, which the user describes. In both revisions."""
        heard.append((trip.action, trip.data.model_dump() if trip.action == "accept" else None))
        return f"{trip.action}: done"

    @server.tool()
    async def pay(context: Context) -> str:
        """Has the user open a page, while the call waits."""
        answer = await context.elicit_url("Pay the order", PAGE, "order-7")
        heard.append(answer.action)
        return f"{answer.action}: done"

    @server.tool()
    async def pay_first(context: Context) -> str | InputRequiredResult:
        """Has the user open a page, and is then called again."""
        answers: Any = context.input_responses
        if not answers:
            params = ElicitRequestURLParams(message="Pay the order", url=PAGE)
            return InputRequiredResult(
                input_requests={"order": ElicitRequest(params=params)}, request_state="s7"
            )
        heard.append((answers["order"].action, context.request_state))
        return f"{answers['order'].action}: done"

    @server.tool()
    async def pay_before() -> str:
        """Refuses the call until the user has opened a page, with the error of the older revision."""
        heard.append("asked")
        if len(heard) % 2:
            params = ElicitRequestURLParams(message="Pay the order", url=PAGE, elicitation_id="order-7")
            raise UrlElicitationRequiredError([params])
        return "paid: done"

    @server.tool()
    async def nag(context: Context) -> str:
        """Asks without end, while the call waits."""
        while True:
            heard.append((await context.elicit("Still there?", Nothing)).action)

    @server.tool()
    async def nag_first() -> str | InputRequiredResult:
        """Asks without end, and is called again each time."""
        heard.append("again")
        params = ElicitRequestURLParams(message="Still there?", url=PAGE)
        return InputRequiredResult(input_requests={"there": ElicitRequest(params=params)})
