"""`/setup`: the page at the one-time URL that sets the first administrator's password.

Browsers get HTML, other clients the JSON envelope. `domain/accounts/setup.py` checks the token.
"""

import html
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from litestar import Controller, MediaType, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.envelope import Success, success
from luxx.api.http.errors import status_of
from luxx.api.http.request_input import OPENAPI_EXTRA, read_body
from luxx.api.routes.auth import NewPassword
from luxx.domain.accounts.caller import Peer
from luxx.domain.accounts.passwords import MIN_PASSWORD_LENGTH
from luxx.domain.accounts.setup import PasswordSetup, SetupState
from luxx.domain.accounts.users import UserView
from luxx.errors import InvalidInput, LuxxError, TooMany
from luxx.infra.field_errors import FieldErrors

InjectedPeer = NamedDependency[Peer]
InjectedSetup = NamedDependency[PasswordSetup]

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 10
TOKEN_BYTES = 4096
SetupToken = Annotated[str, QueryParameter(max_length=TOKEN_BYTES, description="from the printed URL")]


class SetupBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`password_again`, if given, must equal `password`; the page sends both."""

    token: Annotated[str, Meta(max_length=TOKEN_BYTES)]
    password: NewPassword
    password_again: str | None = None


_BODY_SCHEMA = {"$ref": "#/components/schemas/SetupBody"}
_MEDIA = ("application/json", FORM)
_BODY = {"required": True, "content": {media: {"schema": _BODY_SCHEMA} for media in _MEDIA}}


class SetupController(Controller):
    path = "/setup"
    opt = {PUBLIC: True}
    tags = ("auth",)

    @get()
    async def show(
        self,
        request: Request[Any, Any, Any],
        peer: InjectedPeer,
        password_setup: InjectedSetup,
        token: SetupToken = "",
    ) -> Response[Success[SetupState]]:
        """Whether the one-time URL is valid. A browser gets the page with the form."""
        try:
            state = await password_setup.state(peer, token)
        except LuxxError as error:
            return _error_answer(request, error, form="")
        if _is_browser(request):
            return _page(_form(token, state.username))
        message = "POST the token and a new password to /setup"
        return Response(success(state, message), headers={"cache-control": "no-store"})

    @post(status_code=200, opt={OPENAPI_EXTRA: {"requestBody": _BODY}})
    async def save(
        self, request: Request[Any, Any, Any], peer: InjectedPeer, password_setup: InjectedSetup
    ) -> Response[Success[UserView]]:
        """Set the administrator's password with the token of the one-time URL; all sign-ins end."""
        token = ""
        try:
            fields = await _read_fields(request)
            token = fields.get("token", "")
            body = read_body(msgspec.json.encode(fields), SetupBody)
            if body.password_again not in (None, body.password):
                raise FieldErrors({"$.password_again": "the two passwords differ"}).refusal()
            user = await password_setup.set_password(peer, body.token, body.password)
        except LuxxError as error:
            is_correctable = isinstance(error, InvalidInput | TooMany) and isinstance(token, str)
            return _error_answer(request, error, form=_form(token, "") if is_correctable else "")
        if _is_browser(request):
            name = html.escape(user.username)
            return _page(f"<p>The password of <b>{name}</b> is set. Sign in with it from now on.</p>")
        return Response(success(user, "password set; sign in with it"))


async def _read_fields(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """The fields of a form or JSON body. Raises InvalidInput for any other body."""
    body = await request.body()
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return read_body(body, dict[str, Any])
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise FieldErrors({"$": "not readable as a form"}).refusal() from error
    if len(dict(pairs)) < len(pairs):
        raise FieldErrors({"$": "a field is given more than once"}).refusal()
    return dict(pairs)


def _is_browser(request: Request[Any, Any, Any]) -> bool:
    return "text/html" in request.headers.get("accept", "").lower()


def _error_answer(request: Request[Any, Any, Any], error: LuxxError, *, form: str) -> Response[Any]:
    if not _is_browser(request):
        raise error
    text = f'<p role="alert">{html.escape(error.message)}</p>{form}'
    response = _page(text, status_of(error))
    if isinstance(error, TooMany):
        response.headers["Retry-After"] = str(max(1, error.retry_after))
    return response


def _form(token: str, username: str) -> str:
    for_user = f" for <b>{html.escape(username)}</b>" if username else ""
    field = f'type="password" autocomplete="new-password" required minlength="{MIN_PASSWORD_LENGTH}"'
    return f"""<p>Choose a password{for_user} of at least {MIN_PASSWORD_LENGTH} characters.</p>
<form method="post" action="/setup">
<input type="hidden" name="token" value="{html.escape(token)}">
<p><label>Password<br><input name="password" {field}></label></p>
<p><label>Repeat the password<br><input name="password_again" {field}></label></p>
<p><button>Set the password</button></p>
</form>"""


def _page(text: str, status: int = 200) -> Response[Any]:
    # With the server's `no-referrer`, browsers would send `Origin: null` with the form, and the server would
    # refuse it. This policy sends the origin, but never the token.
    document = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="referrer" content="strict-origin"><title>Luxx: set the password</title></head>
<body>
<h1>Set the administrator's password</h1>
{text}
</body>
</html>
"""
    headers = {"cache-control": "no-store"}
    return Response(document, status_code=status, media_type=MediaType.HTML, headers=headers)
