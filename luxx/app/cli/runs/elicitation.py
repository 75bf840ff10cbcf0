"""What an MCP server asks for, at the terminal: one question for each value."""

from typing import Any

from luxx.app.cli.menu import FrameOption, FrameQuestion

LEAVE_OUT = "leave it out"
YES, NO = "yes", "no"


class TypedForm:
    """The values of a form, which a person types one after the other."""

    def __init__(self, question: FrameQuestion) -> None:
        self.question = question
        self.values: dict[str, Any] = {}
        schema = question.requested_schema
        self._required: list[str] = schema.get("required", [])
        self._left: list[tuple[str, dict[str, Any]]] = list(schema.get("properties", {}).items())

    @property
    def next_question(self) -> FrameQuestion | None:
        """The question for the next value; None: there are no more."""
        if not self._left:
            return None
        name, field = self._left[0]
        options = [FrameOption(label=label) for label in _choices(field)]
        if name not in self._required:
            default = f"then it is {field['default']}" if "default" in field else ""
            options.append(FrameOption(label=LEAVE_OUT, description=default, is_recommended=True))
        about = ": ".join(text for text in (field.get("title"), field.get("description")) if text)
        return FrameQuestion(
            question_id=self.question.question_id,
            run_id=self.question.run_id,
            prompt=f"{name} ({about or field['type']})",
            options=options,
            multiple=field["type"] == "array",
            required=True,
        )

    def take(self, answer: str | list[str]) -> str:
        """Takes a value; returns what is wrong with it, and empty if nothing is."""
        name, field = self._left[0]
        if answer in (LEAVE_OUT, [LEAVE_OUT]) and name not in self._required:
            self._left.pop(0)
            return ""
        try:
            self.values[name] = _value(field, answer)
        except ValueError:
            return f"{name}: type a {field['type']}"
        self._left.pop(0)
        return ""


def _choices(field: dict[str, Any]) -> list[str]:
    if field["type"] == "boolean":
        return [YES, NO]
    of_items: dict[str, Any] = field.get("items", field)
    titled: list[dict[str, Any]] = of_items.get("anyOf", of_items.get("oneOf", []))
    return [str(one.get("const", "")) for one in titled] or [str(one) for one in of_items.get("enum", [])]


def _value(field: dict[str, Any], answer: str | list[str]) -> Any:
    if field["type"] == "array":
        return answer if isinstance(answer, list) else [answer]
    text = answer if isinstance(answer, str) else " ".join(answer)
    match field["type"]:
        case "integer":
            return int(text)
        case "number":
            return float(text)
        case "boolean":
            if text not in (YES, NO):
                raise ValueError(text)
            return text == YES
        case _:
            return text
