"""What a person's permission is bound to: the call, and a hash of the run, the tool and the arguments. Pure.

Whatever of these is another when the call is to be made, the permission is void and is asked for anew.
"""

from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.errors import InvalidInput
from luxx.runs.state import Asked
from luxx.tools.core import Approved, Rejected
from luxx.tools.rules_rows import PATTERN_LENGTH
from luxx.wire.event import QuestionAnswered, QuestionAsked
from luxx.wire.question import Answer, AnsweredBy, Option, Permission, Question, QuestionKind
from luxx.wire.step import Step

ONCE = Option(label=Permission.ONCE.value, description="This call may run")
REJECT = Option(label=Permission.REJECT.value, description="This call may not run")


def hash_of(run_id: str, tool: str, arguments: str) -> str:
    """The same for the same run, tool and arguments, however the JSON text of these is written."""
    try:
        meant: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        meant = arguments
    return sha256(msgspec.json.encode([run_id, tool, meant], order="sorted")).hexdigest()


def permission_for(
    run_id: str, call: Step, asked: tuple[Asked, ...], member: str | UnsetType = UNSET
) -> QuestionAnswered | None:
    """The answer to whether this call may be made as it stands now, if there is one.

    `member`: where in a composition it is made. One answer is for one call, and another member's is another.
    """
    now = hash_of(run_id, str(call.name), str(call.arguments or "{}"))
    for one in reversed(asked):
        question, answer = one.question, one.answer
        if question.kind != QuestionKind.PERMISSION or question.call_id != call.id_ref or answer is None:
            continue
        if question.member != member:
            continue
        if hash_of(run_id, str(question.tool), str(question.arguments)) != now:
            continue
        if answer.answer == Permission.REJECT or answer.approves == _approved_hash(run_id, question, answer):
            return answer
    return None


def options_of(usual: str) -> list[Option]:
    """What can be answered; "always" only where the rule has room."""
    if not may_be_rule(usual):
        return [ONCE, REJECT]
    about = "This call may run, and from now on all like it, which is a rule of yours"
    return [ONCE, Option(label=Permission.ALWAYS.value, description=about), REJECT]


def may_be_rule(usual: str) -> bool:
    """Whether a pattern has room in a rule, and is text that every database takes."""
    return len(usual) <= PATTERN_LENGTH and "\0" not in usual


def check_permission(question: Question, answer: Answer) -> None:
    """Raises InvalidInput for what is no answer to a permission."""
    if answer not in list(Permission):
        raise wrong("answer", "a permission is answered with once, always or reject")
    if answer == Permission.ALWAYS and answer not in [option.label for option in question.options]:
        raise wrong("answer", "what this call does is too long for a rule; answer once or reject")


def answer_to(
    run_id: str, question_id: str, question: Question, answer: Answer, *, note: str | None, edited: str | None
) -> QuestionAnswered:
    """A person's answer to a question, as it is logged; a permission is bound to what it allows."""
    answered = QuestionAnswered(
        question_id=question_id,
        answer=answer,
        answered_by=AnsweredBy.PERSON,
        note=msgspec.UNSET if note is None else note,
        arguments=msgspec.UNSET if edited is None else edited,
    )
    return answered if question.kind != QuestionKind.PERMISSION else bound(run_id, question, answered)


def bound(run_id: str, question: Question, answer: QuestionAnswered) -> QuestionAnswered:
    """The answer with the hash of what it allows."""
    if answer.answer == Permission.REJECT:
        return answer
    return msgspec.structs.replace(answer, approves=_approved_hash(run_id, question, answer))


def carried_over(answer: QuestionAnswered, arguments: dict[str, Any]) -> Approved:
    """The call as the answer allows it. Raises Rejected."""
    note = answer.note if isinstance(answer.note, str) else None
    if answer.answer == Permission.REJECT:
        told = "Do not make it again; find another way, or ask what they want."
        because = f", and says: {note}. Do as they say." if note else f". {told}"
        raise Rejected(f"the person whom you work for did not allow this call{because}")
    if isinstance(answer.arguments, str):
        edited: dict[str, Any] = msgspec.json.decode(answer.arguments)
        return Approved(arguments=edited, is_edited=edited != arguments, note=note)
    return Approved(arguments=arguments, note=note)


def wrong(field: str, problem: str) -> InvalidInput:
    """What is not right about one field of an answer."""
    return InvalidInput(f"the request is not valid: {problem}", detail={"fields": {f"$.{field}": problem}})


def _approved_hash(run_id: str, question: Question | QuestionAsked, answer: QuestionAnswered) -> str:
    arguments = answer.arguments if isinstance(answer.arguments, str) else str(question.arguments)
    return hash_of(run_id, str(question.tool), arguments)
