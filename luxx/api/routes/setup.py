"""`/setup`: the page at the one-time URL that sets the first administrator's password.

Browsers get HTML in English or Chinese, other clients the JSON envelope. `domain/accounts/setup.py` checks
the token.
"""

import base64
import hashlib
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
STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.55 system-ui,sans-serif;max-width:22rem;margin:12vh auto;padding:0 1rem}
body{overflow-wrap:anywhere}
h1{font-size:1.25rem;font-weight:500}
label{display:block}
input,button{font:inherit;box-sizing:border-box;width:100%;padding:.45rem .7rem;border:1px solid #8888}
input,button{border-radius:6px}
button{background:#4b4fbf;border-color:#4b4fbf;color:#fff;cursor:pointer}
[role=alert]{border-left:3px solid #c0392b;padding-left:.7rem}
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
CHINESE_REFUSALS = {
    "setup_token_invalid": "此设置地址无效；请完整复制服务器显示的地址。",
    "setup_token_expired": "此设置地址已过期；重新启动服务器可获得新的地址。",
    "setup_token_used": "此设置地址已被使用，或密码已通过其他方式设置；请用那个密码登录。",
    "password_refused": "此密码不可用：它太短或太长、与用户名相同，或者是公开的默认密码。请另选一个。",
    "invalid_input": f"输入无效：密码至少需要 {MIN_PASSWORD_LENGTH} 个字符，两次输入必须一致。",
    "too_many": "尝试次数过多；请稍后再试。",
}
"""By kind; other refusals are in English."""
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
            return _page(request, _form(request, token, state.username))
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
            return _error_answer(request, error, form=_form(request, token) if is_correctable else "")
        if _is_browser(request):
            name = f"<b>{html.escape(user.username)}</b>"
            if _reads_chinese(request):
                return _page(request, f"<p>{name} 的密码已设置。请从现在起用它登录。</p>")
            return _page(request, f"<p>The password of {name} is set. Sign in with it from now on.</p>")
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
    chinese = CHINESE_REFUSALS.get(error.kind) if _reads_chinese(request) else None
    text = f'<p role="alert">{html.escape(chinese or error.message)}</p>{form}'
    response = _page(request, text, status_of(error))
    if isinstance(error, TooMany):
        response.headers["Retry-After"] = str(max(1, error.retry_after))
    return response


def _reads_chinese(request: Request[Any, Any, Any]) -> bool:
    """Of the two languages of the page, browsers name the preferred one first."""
    names = (name.strip() for name in request.headers.get("accept-language", "").lower().split(","))
    return next((name for name in names if name.startswith(("zh", "en"))), "").startswith("zh")


def _form(request: Request[Any, Any, Any], token: str, username: str = "") -> str:
    name = f"<b>{html.escape(username)}</b>" if username else ""
    if _reads_chinese(request):
        about = f"请{f'为 {name} ' if name else ''}设置至少 {MIN_PASSWORD_LENGTH} 个字符的密码。"
        password, repeat, save = "密码", "再次输入密码", "设置密码"
    else:
        about = (
            f"Choose a password{f' for {name}' if name else ''} of at least {MIN_PASSWORD_LENGTH} characters."
        )
        password, repeat, save = "Password", "Repeat the password", "Set the password"
    field = f'type="password" autocomplete="new-password" required minlength="{MIN_PASSWORD_LENGTH}"'
    return f"""<p>{about}</p>
<form method="post" action="/setup">
<input type="hidden" name="token" value="{html.escape(token)}">
<p><label>{password}<br><input name="password" {field}></label></p>
<p><label>{repeat}<br><input name="password_again" {field}></label></p>
<p><button>{save}</button></p>
</form>"""


def _page(request: Request[Any, Any, Any], text: str, status: int = 200) -> Response[Any]:
    # With the server's `no-referrer`, browsers would send `Origin: null` with the form, and the server would
    # refuse it. This policy sends the origin, but never the token.
    language, title, heading = "en", "Luxx: set the password", "Set the administrator's password"
    if _reads_chinese(request):
        language, title, heading = "zh", "Luxx：设置密码", "设置管理员的密码"
    document = f"""<!doctype html>
<html lang="{language}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="strict-origin"><title>{title}</title>
<style>{STYLE}</style></head>
<body>
<h1>{heading}</h1>
{text}
</body>
</html>
"""
    headers = {"cache-control": "no-store", "content-security-policy": PAGE_POLICY, "vary": "Accept-Language"}
    return Response(document, status_code=status, media_type=MediaType.HTML, headers=headers)
