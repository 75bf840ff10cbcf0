"""`/tools/compositions`: make, list, show, replace and delete chains of tools that are used as one tool."""

from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody

from luxx.api.envelope import Page, Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize, TextId
from luxx.tools.compositions.service import CompositionService, CompositionView
from luxx.wire.composition import Composition

GivenCompositions = NamedDependency[CompositionService]


class CompositionController(Controller):
    path = "/tools/compositions"
    tags = ("tools",)

    @get()
    async def list_compositions(
        self,
        caller: GivenCaller,
        compositions: GivenCompositions,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[CompositionView]]:
        """Yours, newest first, also those that do not work now."""
        items, total = await compositions.list_page(caller, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @post(status_code=201)
    async def create(
        self, caller: GivenCaller, compositions: GivenCompositions, data: JSONBody[Composition]
    ) -> Success[CompositionView]:
        """A new composition, which is a tool of yours from then on."""
        return success(await compositions.create(caller, data), "created")

    @get("/{composition_id:str}")
    async def show(
        self, caller: GivenCaller, compositions: GivenCompositions, composition_id: TextId
    ) -> Success[CompositionView]:
        """One composition."""
        return success(await compositions.get(caller, composition_id))

    @put("/{composition_id:str}")
    async def replace(
        self,
        caller: GivenCaller,
        compositions: GivenCompositions,
        composition_id: TextId,
        data: JSONBody[Composition],
    ) -> Success[CompositionView]:
        """Put another in its place, whole; its counters go on."""
        return success(await compositions.replace(caller, composition_id, data), "saved")

    @delete("/{composition_id:str}", status_code=200)
    async def delete(
        self, caller: GivenCaller, compositions: GivenCompositions, composition_id: TextId
    ) -> Success[None]:
        """Delete a composition; the tools that it is made of stay."""
        await compositions.delete(caller, composition_id)
        return success(None, "deleted")
