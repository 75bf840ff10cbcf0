"""`/skills` and `/tenant/skills`: the skills of the system, the tenant and projects."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,  # pyright: ignore[reportUnknownVariableType]
)

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.files import body_chunks
from luxx.api.http.request_input import OPENAPI_EXTRA, InjectedCaller, PageNumber, PageSize, TextId
from luxx.api.routes.files import BINARY_SCHEMA
from luxx.domain.files.names import content_disposition
from luxx.domain.skills.changes import NewSkill, SkillChanges, SkillName
from luxx.domain.skills.differences import Against, SkillDifferences
from luxx.domain.skills.document import MAX_FILE_BYTES
from luxx.domain.skills.layers import ConfigAction, SkillConfig
from luxx.domain.skills.service import SkillService
from luxx.domain.skills.skill import SkillScope
from luxx.domain.skills.upload import MAX_ALL_BYTES, read_upload
from luxx.domain.skills.views import SkillView
from luxx.errors import InvalidInput, TooLarge
from luxx.runs.routing import MatchedItems, RequestRouter

InjectedSkills = NamedDependency[SkillService]
LayerParameter = Annotated[
    Literal["system", "tenant", "project", "all"],
    QueryParameter(name="scope", description="the layer of the skills"),
]
AgainstParameter = Annotated[Against, QueryParameter(description="what the skill is compared with")]
ProjectId = Annotated[
    str | None, QueryParameter(max_length=36, description="the project whose skills hide farther ones")
]

TEXT_EXTRA = {
    "requestBody": {
        "required": True,
        "description": "the whole SKILL.md",
        "content": {"text/markdown": {"schema": {"type": "string"}}},
    },
    "responses": {"413": {"$ref": "#/components/responses/TooLarge"}},
}
CONTENT_EXTRA = {
    "responses": {
        "200": {"description": "Done.", "content": {"text/markdown": {"schema": {"type": "string"}}}}
    }
}
EXPORT_EXTRA = {
    "responses": {"200": {"description": "Done.", "content": {"application/zip": {"schema": BINARY_SCHEMA}}}}
}
UPLOAD_EXTRA = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {**BINARY_SCHEMA, "description": "a SKILL.md, or a ZIP file with one"},
                        "scope": {
                            "type": "string",
                            "enum": ["tenant", "project"],
                            "description": "the layer of the skill",
                        },
                        "project_id": {"type": "string", "description": "the project of a project's skill"},
                    },
                    "required": ["file", "scope"],
                }
            }
        },
    },
    "responses": {"413": {"$ref": "#/components/responses/TooLarge"}},
}
FORM_BYTES = 64 * 1024
MAX_FIELD_BYTES = 1_000


class ReviewBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`digest`: of the files that were read; a skill with others is not reviewed."""

    digest: Annotated[str, Meta(max_length=64)] | None = None


class SkillMatchBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text of a request, as a person would send it, in a project or without one."""

    text: Annotated[str, Meta(min_length=1, max_length=100_000)]
    project_id: Annotated[str, Meta(max_length=36)] | None = None


class SystemSkillBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A skill of the system, by its name."""

    skill_name: SkillName


class OverrideBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A skill of the system, and the skill of the tenant that stands for it."""

    skill_name: SkillName
    override_skill_id: Annotated[str, Meta(min_length=1, max_length=100)]


class SkillConfigs(msgspec.Struct, frozen=True, kw_only=True):
    """What the tenant changed of the system's skills."""

    configs: list[SkillConfig]


class SkillController(Controller):
    path = "/skills"
    tags = ("skills",)
    opt = CHAT

    @get()
    async def list_skills(
        self,
        caller: InjectedCaller,
        skills: InjectedSkills,
        layer: LayerParameter = "all",
        project_id: ProjectId = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[SkillView]]:
        """The skills of the system, your tenant and, with a `project_id`, that project, by layer and name.

        Those that a nearer layer hides, disabled ones and folders that cannot be used are among them.
        """
        wanted = None if layer == "all" else SkillScope(layer)
        found = await skills.list_page(caller, wanted, project_id, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @get("/system")
    async def list_system_skills(
        self, caller: InjectedCaller, skills: InjectedSkills, page: PageNumber = 1, page_size: PageSize = 20
    ) -> Success[Page[SkillView]]:
        """The skills of the server's directories, by name."""
        found = await skills.list_page(caller, SkillScope.SYSTEM, None, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, skills: InjectedSkills, data: JSONBody[NewSkill]
    ) -> Success[SkillView]:
        """Create a skill of your tenant (ADMIN) or of one of your projects."""
        return success(await skills.create(caller, data), "skill created")

    @post("/upload", status_code=201, opt={OPENAPI_EXTRA: UPLOAD_EXTRA})
    async def upload(
        self, request: Request[Any, Any, Any], caller: InjectedCaller, skills: InjectedSkills
    ) -> Success[SkillView]:
        """Create a skill from a form with the `file`, a SKILL.md or a ZIP file, and the `scope`.

        It is stored whole or not at all.
        """
        content_type = request.headers.get("content-type", "")
        form = await _read_form(content_type, body_chunks(request.receive))
        scope, project_id = form.get("scope", b"").decode("utf-8", "replace"), form.get("project_id")
        if scope not in (SkillScope.TENANT, SkillScope.PROJECT):
            raise InvalidInput("the part scope of the form must be tenant or project", field="$.scope")
        if not form.get("file"):
            raise InvalidInput("the form has no part file", kind="file_missing", field="$.file")
        given = await asyncio.to_thread(read_upload, form["file"])
        project = project_id.decode("utf-8", "replace").replace("\0", "") if project_id else None
        return success(await skills.upload(caller, SkillScope(scope), project, given), "skill created")

    @post("/match", status_code=200)
    async def match(
        self,
        caller: InjectedCaller,
        request_router: NamedDependency[RequestRouter],
        data: JSONBody[SkillMatchBody],
    ) -> Success[MatchedItems]:
        """The skills of your runs that share words with a text, the best first, as a message with this text
        is matched. Those at or above `threshold` are what it asks for."""
        return success(await request_router.match(caller, data.text, "skill", data.project_id))

    @get("/{skill_id:str}")
    async def show(
        self, caller: InjectedCaller, skills: InjectedSkills, skill_id: TextId
    ) -> Success[SkillView]:
        """A skill. The id of one of the system is `system:` and its name."""
        return success(await skills.get(caller, skill_id))

    @put("/{skill_id:str}")
    async def change(
        self, caller: InjectedCaller, skills: InjectedSkills, skill_id: TextId, data: JSONBody[SkillChanges]
    ) -> Success[SkillView]:
        """Change a skill. All but `enabled` is written into its SKILL.md, which ends a review."""
        return success(await skills.update(caller, skill_id, data), "saved")

    @delete("/{skill_id:str}", status_code=200)
    async def remove(self, caller: InjectedCaller, skills: InjectedSkills, skill_id: TextId) -> Success[None]:
        """Delete a skill. Runs that began with it keep it."""
        await skills.delete(caller, skill_id)
        return success(None, "deleted")

    @get("/{skill_id:str}/content", media_type="text/markdown", opt={OPENAPI_EXTRA: CONTENT_EXTRA})
    async def read_content(
        self, caller: InjectedCaller, skills: InjectedSkills, skill_id: TextId
    ) -> Response[bytes]:
        """The SKILL.md, byte for byte."""
        content = await skills.content(caller, skill_id)
        return Response(content, media_type="text/markdown; charset=utf-8")

    @put("/{skill_id:str}/content", opt={OPENAPI_EXTRA: TEXT_EXTRA})
    async def write_content(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        skills: InjectedSkills,
        skill_id: TextId,
    ) -> Success[SkillView]:
        """Replace the SKILL.md by the body; the other files of the skill stay. It ends a review."""
        content = await _read_body(body_chunks(request.receive), MAX_FILE_BYTES)
        return success(await skills.set_content(caller, skill_id, content), "saved")

    @get("/{skill_id:str}/export", media_type="application/zip", opt={OPENAPI_EXTRA: EXPORT_EXTRA})
    async def export(
        self, caller: InjectedCaller, skills: InjectedSkills, skill_id: TextId
    ) -> Response[bytes]:
        """A ZIP file with all files of the skill, as other products that read skills accept it."""
        name, packed = await skills.export(caller, skill_id)
        headers = {"content-disposition": content_disposition(f"{name}.zip")}
        return Response(packed, media_type="application/zip", headers=headers)

    @get("/{skill_id:str}/differences")
    async def show_differences(
        self,
        caller: InjectedCaller,
        skills: InjectedSkills,
        skill_id: TextId,
        against: AgainstParameter = Against.REVIEWED,
    ) -> Success[SkillDifferences]:
        """What differs from the files of the skill that an ADMIN `reviewed` last, or from the skill of the
        same name that it hides (`hidden`). Where there is none, all is new."""
        return success(await skills.differences(caller, skill_id, against))

    @post("/{skill_id:str}/review", status_code=200)
    async def review(
        self,
        caller: InjectedCaller,
        skills: InjectedSkills,
        skill_id: TextId,
        data: JSONBody[ReviewBody],
    ) -> Success[SkillView]:
        """Note that you, an ADMIN, have read the present files of a skill, so all may use it.

        A change of any of them ends the review.
        """
        return success(await skills.review(caller, skill_id, data.digest), "reviewed")


class TenantSkillController(Controller):
    path = "/tenant/skills"
    tags = ("tenants",)

    @get("/config")
    async def show_configs(self, caller: InjectedCaller, skills: InjectedSkills) -> Success[SkillConfigs]:
        """The skills of the system that your tenant has disabled or replaced."""
        return success(SkillConfigs(configs=await skills.configs(caller)))

    @post("/disable", status_code=200)
    async def disable(
        self, caller: InjectedCaller, skills: InjectedSkills, data: JSONBody[SystemSkillBody]
    ) -> Success[SkillConfigs]:
        """Disable a skill of the system for your tenant. For ADMINs."""
        return _configs(await skills.configure(caller, data.skill_name, ConfigAction.DISABLE))

    @post("/enable", status_code=200)
    async def enable(
        self, caller: InjectedCaller, skills: InjectedSkills, data: JSONBody[SystemSkillBody]
    ) -> Success[SkillConfigs]:
        """End that a skill of the system is disabled or replaced. For ADMINs."""
        return _configs(await skills.configure(caller, data.skill_name, None))

    @post("/override", status_code=200)
    async def override(
        self, caller: InjectedCaller, skills: InjectedSkills, data: JSONBody[OverrideBody]
    ) -> Success[SkillConfigs]:
        """Let a skill of your tenant stand for one of the system. For ADMINs."""
        action, override_id = ConfigAction.OVERRIDE, data.override_skill_id
        return _configs(await skills.configure(caller, data.skill_name, action, override_id))


def _configs(configs: list[SkillConfig]) -> Success[SkillConfigs]:
    return success(SkillConfigs(configs=configs), "saved")


async def _read_body(body: AsyncIterator[bytes], most: int) -> bytes:
    content = bytearray()
    async for chunk in body:
        content += chunk
        if len(content) > most:
            raise TooLarge(f"SKILL.md is larger than {most // 1024} KB; move texts into other files")
    return bytes(content)


async def _read_form(content_type: str, body: AsyncIterator[bytes]) -> dict[str, bytes]:
    """The first parts of these names of a form. Raises InvalidInput or TooLarge."""
    kind, options = parse_options_header(content_type)
    if kind != "multipart/form-data":
        raise InvalidInput("send a form (multipart/form-data) with the parts file and scope")
    parts: dict[str, bytearray] = {}
    current: bytearray | None = None
    most = 0
    try:
        with PushMultipartParser(options.get("boundary", ""), max_segment_count=20, strict=True) as parser:
            async for chunk in body:
                for event in parser.parse(chunk) if chunk else ():
                    if isinstance(event, MultipartSegment):
                        name = event.name or ""
                        current = None if name in parts else parts.setdefault(name, bytearray())
                        most = MAX_ALL_BYTES if name == "file" else MAX_FIELD_BYTES
                    elif event and current is not None:
                        current += event
                        if len(current) > most:
                            raise TooLarge(f"the upload is larger than {MAX_ALL_BYTES // 2**20} MB")
    except (MultipartError, ValueError) as error:
        raise InvalidInput(f"the form cannot be read: {error}", kind="form_unreadable") from error
    return {name: bytes(content) for name, content in parts.items()}
