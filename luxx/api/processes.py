"""`/admin/processes`: which servers and workers there are, for operators."""

from litestar import Controller, get
from litestar.di import NamedDependency

from luxx.api.envelope import Page, Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize
from luxx.runs.processes import ProcessService, ProcessView


class ProcessController(Controller):
    path = "/admin/processes"
    tags = ("admin",)

    @get()
    async def list_processes(
        self,
        caller: GivenCaller,
        processes: NamedDependency[ProcessService],
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ProcessView]]:
        """The processes of this database, newest first, and how many runs each drives. Operators only."""
        items, total = await processes.list_page(caller, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))
