"""The server's own OpenAPI document, and the check of answers against it."""

import re
from functools import cache
from typing import Any

import httpx
from jsonschema_rs import Draft202012, Draft202012Validator, Registry

URN = "urn:luxx"
MEMORIZED_BYTES = 20_000
METHODS = ("get", "put", "post", "delete", "patch")


class Operation:
    """One method of one path of the document."""

    def __init__(self, document: dict[str, Any], method: str, template: str) -> None:
        self.method = method.upper()
        self.template = template
        self.about: dict[str, Any] = document["paths"][template][method]
        shared = document["paths"][template].get("parameters", [])
        self.parameters: list[dict[str, Any]] = [*shared, *self.about.get("parameters", [])]

    def __repr__(self) -> str:
        return f"{self.method} {self.template}"

    def names(self, where: str) -> list[str]:
        """The names of the parameters in the path or the query."""
        return [each["name"] for each in self.parameters if each["in"] == where]

    @property
    def is_public(self) -> bool:
        return self.about.get("security") == []


class Document:
    """`/openapi.json`, with a search for the operation of a request."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self._registry = Registry([(URN, content)], draft=Draft202012)
        self.operations = [
            Operation(content, method, template)
            for template, path in content["paths"].items()
            for method in METHODS
            if method in path
        ]
        self._patterns = sorted(
            ((_pattern(each.template), each) for each in self.operations),
            key=lambda pair: pair[1].template.count("{"),
        )
        self._validator = cache(self._make_validator)
        self._valid: set[tuple[Operation, str, str, bytes]] = set()

    def find(self, method: str, path: str) -> Operation | None:
        """The operation that a request calls."""
        for pattern, operation in self._patterns:
            if operation.method == method.upper() and pattern.fullmatch(path):
                return operation
        return None

    @property
    def lists(self) -> set[str]:
        """The paths of lists with pages, without those of a part of a resource."""
        return {
            each.template
            for each in self.operations
            if each.method == "GET" and "page_size" in each.names("query") and "{" not in each.template
        }

    def resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema, or the one that it references."""
        while "$ref" in schema:
            part: Any = self.content
            for name in schema["$ref"].removeprefix("#/").split("/"):
                part = part[name]
            schema = part
        return schema

    def body_schema(self, operation: Operation) -> dict[str, Any] | None:
        """The JSON schema of the operation's body, if it takes one."""
        body = operation.about.get("requestBody")
        if body is None:
            return None
        content = self.resolve(body)["content"].get("application/json")
        return content and self.resolve(content["schema"])

    def check(self, response: httpx.Response) -> None:
        """Raises AssertionError for a JSON answer that the document does not describe."""
        request = response.request
        operation = self.find(request.method, request.url.path)
        if operation is None:
            return
        status = str(response.status_code)
        responses = operation.about["responses"]
        assert status in responses or "default" in responses, (
            f"{operation} does not document the status {status}"
        )
        key = status if status in responses else "default"
        content = self.resolve(responses[key]).get("content", {})
        kind = response.headers.get("content-type", "").partition(";")[0]
        if not kind or not response.content:
            return
        # A test that compares states gets equal answers hundreds of times.
        answer = (operation, status, kind, response.content)
        if answer in self._valid:
            return
        assert kind in content, f"{operation} {status} answers {kind}; documented: {list(content)}"
        if kind == "application/json":
            at = f"#/paths/{_escaped(operation)}/responses/{key}"
            reference = f"{URN}{responses[key].get('$ref', at)}/content/application~1json/schema"
            problems = [
                f"{error.instance_path}: {error.message[:300]}"
                for error in self._validator(reference).iter_errors(response.json())
            ]
            assert not problems, f"{operation} {status} breaks its schema: {problems}"
        if len(response.content) <= MEMORIZED_BYTES:
            self._valid.add(answer)

    def _make_validator(self, reference: str) -> Draft202012Validator:
        return Draft202012Validator({"$ref": reference}, registry=self._registry)


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{[^}]+\}", template)
    return re.compile("[^/]+".join(re.escape(part) for part in parts))


def _escaped(operation: Operation) -> str:
    path = operation.template.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
    return f"{path}/{operation.method.lower()}"
