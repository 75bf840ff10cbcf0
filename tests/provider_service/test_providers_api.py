"""The provider routes over HTTP; a header names the caller."""

from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar, Request, Response
from litestar.di import Provide

from luxx.api.http.envelope import Failure
from luxx.api.http.request_input import JsonRequest
from luxx.api.routes.providers import AllowedHostsController, ProvidersController
from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput, LuxxError, NotAllowed, NotFound
from provider_service.services import ADMIN, ANN, BOB, EVE, EVERYBODY, KEY, ProviderServices, ResolvingService

STATUS = {InvalidInput: 400, NotAllowed: 403, NotFound: 404}
BODY = {
    "name": "mine",
    "provider_type": "openai_compatible",
    "base_url": "https://models.example/v1",
    "api_key": KEY,
}
ATTEMPTS = [("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/models")]
FIELDS = {
    "id",
    "user_id",
    "name",
    "provider_type",
    "base_url",
    "api_key",
    "default_model",
    "max_tokens",
    "is_default",
    "is_tenant_default",
    "is_shared",
    "is_own",
    "enabled",
    "created_at",
    "updated_at",
    "models_at",
}


def on_error(_request: Request[Any, Any, Any], error: LuxxError) -> Response[Failure]:
    code = STATUS[type(error)]
    return Response(Failure(error=error.message, code=code, detail={"kind": error.kind}), status_code=code)


async def who(request: Request[Any, Any, Any]) -> Caller:
    return next(caller for caller in EVERYBODY if str(caller.user_id) == request.headers["x-user"])


def client(service: ResolvingService) -> httpx.AsyncClient:
    app = Litestar(
        [ProvidersController, AllowedHostsController],
        request_class=JsonRequest,
        dependencies={
            "caller": Provide(who),
            "providers": Provide(lambda: service, sync_to_thread=False),
            "provider_tests": Provide(service.tests, sync_to_thread=False),
        },
        exception_handlers={LuxxError: on_error},
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://luxx")


def caller_header(caller: Caller) -> dict[str, str]:
    return {"x-user": str(caller.user_id)}


async def test_a_line_break_that_was_pasted_with_a_key_or_a_model_is_cut_off(
    services: ProviderServices,
) -> None:
    async with services.open() as service, client(service) as http:
        pasted = BODY | {"api_key": KEY + "\r\n", "default_model": "one\n"}
        response = await http.post("/providers", json=pasted, headers=caller_header(ANN))
        assert (response.status_code, response.json()["data"]["default_model"]) == (201, "one")
        assert (await service.resolve(ANN)).target.api_key == KEY
        for broken in ({"api_key": "a\nb"}, {"default_model": "a\nb"}, {"name": "mine\n"}):
            answer = await http.post("/providers", json=BODY | broken, headers=caller_header(ANN))
            assert answer.status_code == 400, broken


async def test_provider_is_made_read_changed_listed_and_deleted(services: ProviderServices) -> None:
    async with services.open() as service, client(service) as http:
        response = await http.post("/providers", json=BODY, headers=caller_header(ANN))
        assert response.status_code == 201
        body = response.json()
        assert (body["success"], set(body["data"])) == (True, FIELDS)
        assert body["data"]["created_at"].endswith("Z")
        assert KEY not in response.text
        path = f"/providers/{body['data']['id']}"
        assert (await http.get(path, headers=caller_header(ANN))).json()["data"] == body["data"]
        changed = await http.put(path, json={"name": "new", "max_tokens": 9}, headers=caller_header(ANN))
        assert (changed.json()["data"]["name"], changed.json()["data"]["max_tokens"]) == ("new", 9)
        listed = (await http.get("/providers?page_size=1", headers=caller_header(ANN))).json()["data"]
        assert (listed["total"], listed["page"], listed["page_size"]) == (1, 1, 1)
        for stranger in (BOB, EVE, ADMIN):
            for method, more in (
                ("GET", ""),
                ("PUT", ""),
                ("DELETE", ""),
                ("POST", "/test"),
                ("GET", "/models"),
            ):
                answer = await http.request(
                    method, path + more, headers=caller_header(stranger), json={} if method == "PUT" else None
                )
                assert answer.status_code == 404
        deleted = await http.delete(path, headers=caller_header(ANN))
        assert (deleted.status_code, deleted.json()["success"]) == (200, True)
        assert (await http.get(path, headers=caller_header(ANN))).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"name": ""},
        {"name": "   "},
        {"name": "a\u0000b"},
        {"name": "x" * 101},
        {"name": None},
        {"max_tokens": 0},
        {"max_tokens": 2**40},
        {"max_tokens": "five"},
        {"enabled": "yes"},
        {"api_key": "x" * 5000},
        {"base_url": "x" * 501},
        {"default_model": "x" * 201},
        {"is_default": None},
    ],
)
async def test_wrong_body_is_refused_before_anything_is_saved(
    services: ProviderServices, change: dict[str, Any]
) -> None:
    async with services.open() as service, client(service) as http:
        assert (
            await http.post("/providers", json=BODY | change, headers=caller_header(ANN))
        ).status_code == 400
        provider = (await http.post("/providers", json=BODY, headers=caller_header(ANN))).json()["data"]
        path = f"/providers/{provider['id']}"
        assert (await http.put(path, json=change, headers=caller_header(ANN))).status_code == 400
        assert (await http.get(path, headers=caller_header(ANN))).json()["data"] == provider


@pytest.mark.parametrize("query", ["page=0", "page_size=0", "page_size=101", "page=x", f"page={10**30}"])
async def test_wrong_page_is_400(services: ProviderServices, query: str) -> None:
    async with services.open() as service, client(service) as http:
        assert (await http.get(f"/providers?{query}", headers=caller_header(ANN))).status_code == 400


async def test_private_address_is_403_and_says_what_to_do(services: ProviderServices) -> None:
    async with services.open() as service, client(service) as http:
        body = BODY | {"base_url": "http://127.0.0.1:9999/v1"}
        refused = await http.post("/providers", json=body, headers=caller_header(ANN))
        assert refused.status_code == 403
        assert "administrator" in refused.json()["error"]
        saved = await http.put(
            "/admin/allowed-hosts", json={"hosts": ["127.0.0.1:9999"]}, headers=caller_header(ADMIN)
        )
        assert [host["host"] for host in saved.json()["data"]["hosts"]] == ["127.0.0.1:9999"]
        assert (await http.post("/providers", json=body, headers=caller_header(ANN))).status_code == 201
        for stranger in (ANN, EVE):
            assert (
                await http.get("/admin/allowed-hosts", headers=caller_header(stranger))
            ).status_code == 403


async def test_description_of_the_routes_names_every_field(services: ProviderServices) -> None:
    async with services.open() as service, client(service) as http:
        schema = (await http.get("/schema/openapi.json")).text
        for field in FIELDS:
            assert f'"{field}"' in schema
        paths = msgspec.json.decode(schema)["paths"]
        assert set(paths["/providers/{provider_id}"]) - {"head"} == {"get", "put", "delete"}
