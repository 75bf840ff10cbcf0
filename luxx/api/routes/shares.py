"""`/shares`: links to your conversations, rooms and results of tasks. `/shared` and `/tenant/shared`: what a
link shows, to anybody and to people of the tenant.

The answers of `/shared` must be stored nowhere and found by no search engine, the refusals too.
"""

from typing import Annotated, Any

from litestar import Controller, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.errors import HANDLERS
from luxx.api.http.request_input import OPENAPI_EXTRA, InjectedCaller, PageNumber, PageSize, TextId
from luxx.api.routes.auth import InjectedPeer
from luxx.api.routes.files import BINARY_SCHEMA, DOWNLOAD_POLICY
from luxx.domain.accounts.caller import RateLimits
from luxx.domain.conversations.images import AttachedBytes
from luxx.domain.files.names import content_disposition
from luxx.features.shares.content import SharedView
from luxx.features.shares.models import NewShare, NewShareView, ShareView
from luxx.features.shares.service import ShareService

InjectedShares = NamedDependency[ShareService]
InjectedLimits = NamedDependency[RateLimits]

UNSTORED = {"cache-control": "no-store", "x-robots-tag": "noindex"}
IMAGE_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
IMAGE_CONTENT = {kind: {"schema": BINARY_SCHEMA} for kind in IMAGE_MEDIA_TYPES}
IMAGE_EXTRA = {"responses": {"200": {"description": "Done.", "content": IMAGE_CONTENT}}}
IMAGE_PATH = "/{token:str}/images/{number:int}/{index:int}"

SubjectFilter = Annotated[
    str | None, QueryParameter(max_length=64, description="only links to this conversation, room or task")
]
AfterNumber = Annotated[
    int, QueryParameter(ge=0, le=2**31 - 1, description="only messages with greater numbers")
]
MessageLimit = Annotated[int, QueryParameter(ge=1, le=200, description="how many messages at most")]
MessageNumber = Annotated[
    int, PathParameter(ge=1, le=2**31 - 1, description="the number of the message, from 1")
]
ImageIndex = Annotated[int, PathParameter(ge=0, le=1000)]
LinkToken = Annotated[str, PathParameter(max_length=64, description="the token of the link")]


class ShareController(Controller):
    path = "/shares"
    tags = ("shares",)

    @get()
    async def list_shares(
        self,
        caller: InjectedCaller,
        shares: InjectedShares,
        subject_id: SubjectFilter = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ShareView]]:
        """Your links, newest first, without their tokens."""
        found = await shares.list_page(caller, subject_id=subject_id, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, shares: InjectedShares, data: JSONBody[NewShare]
    ) -> Success[NewShareView]:
        """Make a link to a conversation or a task of yours, or to a room that you may steer.

        Only this answer has the token."""
        return success(await shares.create(caller, data), "link made")

    @delete("/{share_id:str}", status_code=200)
    async def revoke(self, caller: InjectedCaller, shares: InjectedShares, share_id: TextId) -> Success[None]:
        """Revoke a link: it shows nothing from now on, to nobody."""
        await shares.revoke(caller, share_id)
        return success(None, "link revoked")


class TenantSharedController(Controller):
    path = "/tenant/shared"
    tags = ("shares",)

    @get("/{token:str}")
    async def show_to_tenant(
        self,
        caller: InjectedCaller,
        shares: InjectedShares,
        token: LinkToken,
        after: AfterNumber = 0,
        limit: MessageLimit = 50,
    ) -> Success[SharedView]:
        """What a link shows to you: one for the people of your tenant, or for anybody.

        A link that is unknown, has ended, was revoked or is for others answers 404."""
        return success(await shares.show(token, caller, after=after, limit=limit))

    @get(IMAGE_PATH, media_type="image/png", opt={OPENAPI_EXTRA: IMAGE_EXTRA})
    async def image_for_tenant(
        self,
        caller: InjectedCaller,
        shares: InjectedShares,
        token: LinkToken,
        number: MessageNumber,
        index: ImageIndex,
    ) -> Response[bytes]:
        """An image of the message with this number."""
        return _file(await shares.image(token, caller, number, index))


def _unstored(handler: Any) -> Any:
    def handle(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        response = handler(request, error)
        response.headers.update(UNSTORED)
        return response

    return handle


_UNSTORED_HANDLERS: dict[int | type[Exception], Any] = {
    kind: _unstored(handler) for kind, handler in HANDLERS.items()
}


class SharedController(Controller):
    path = "/shared"
    tags = ("shares",)
    opt = {PUBLIC: True}
    exception_handlers = _UNSTORED_HANDLERS

    @get("/{token:str}")
    async def show(
        self,
        peer: InjectedPeer,
        limits: InjectedLimits,
        shares: InjectedShares,
        token: LinkToken,
        after: AfterNumber = 0,
        limit: MessageLimit = 50,
    ) -> Response[Success[SharedView]]:
        """What a link for anybody shows, without a sign-in.

        A link that is unknown, has ended, was revoked or is for others answers 404."""
        limits.count_link_read(peer)
        return Response(success(await shares.show(token, None, after=after, limit=limit)), headers=UNSTORED)

    @get(IMAGE_PATH, media_type="image/png", opt={OPENAPI_EXTRA: IMAGE_EXTRA})
    async def image(
        self,
        peer: InjectedPeer,
        limits: InjectedLimits,
        shares: InjectedShares,
        token: LinkToken,
        number: MessageNumber,
        index: ImageIndex,
    ) -> Response[bytes]:
        """An image of the message with this number, without a sign-in."""
        limits.count_link_read(peer)
        return _file(await shares.image(token, None, number, index))


def _file(content: AttachedBytes) -> Response[bytes]:
    headers = {
        **UNSTORED,
        "content-disposition": content_disposition(content.name),
        "content-security-policy": DOWNLOAD_POLICY,
    }
    return Response(content.data, media_type=content.media_type, headers=headers)
