"""Wrong fields become one error that names them."""

from luxx.errors import InvalidInput, NotFound
from luxx.infra.field_errors import MAX_PATH_CHARS, MAX_REPORTED_FIELDS, FieldErrors


def test_a_refusal_names_every_field() -> None:
    errors = FieldErrors(subject="the document is not valid")
    errors.add("$.name", "too long")
    errors.add("$.model", "unknown")
    errors.add("$.model", "not chosen")
    refusal = errors.refusal(kind="document_invalid")
    assert isinstance(refusal, InvalidInput)
    assert refusal.kind == "document_invalid"
    assert refusal.fields == {"$.name": "too long", "$.model": "unknown; not chosen"}
    assert refusal.message == "the document is not valid: $.name: too long; $.model: unknown; not chosen"


def test_only_missing_things_are_not_found() -> None:
    errors = FieldErrors()
    errors.add("$.agent_id", "there is no agent 7", "agent_not_found")
    assert isinstance(errors.refusal(), NotFound)
    assert errors.refusal().kind == "agent_not_found"
    errors.add("$.name", "too long")
    assert isinstance(errors.refusal(), InvalidInput)


def test_what_follows_from_a_wrong_field_is_no_further_error() -> None:
    errors = FieldErrors({"$.steps[1]": "must be an object"})
    errors.add("$.steps", "a step is missing")
    errors.add("$.steps[1].id", "needed")
    errors.add("$.steps[10].id", "appears twice")
    assert errors.refusal().fields == {
        "$.steps[1]": "must be an object",
        "$.steps[10].id": "appears twice",
    }


def test_a_refusal_bounds_paths_and_their_number() -> None:
    errors = FieldErrors({"$." + "x" * 500: "unknown field"})
    for number in range(MAX_REPORTED_FIELDS):
        errors.add(f"$[{number}]", "wrong")
    fields = errors.refusal().fields
    assert len(fields) == MAX_REPORTED_FIELDS
    assert max(map(len, fields)) == MAX_PATH_CHARS + 1
    assert errors.refusal().message.endswith("; and more")
