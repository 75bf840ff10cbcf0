"""Patterns that templates of tasks suggest: whoever keeps a task as a template thinks that it is worth
repeating. Such a pattern is a draft until runs of the same kind succeeded; no model is asked.
"""

from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant
from luxx.features.patterns.models import NAME_LENGTH
from luxx.features.patterns.rows import own_of_kind
from luxx.features.patterns.service import MAX_STEPS, MAX_TEXT, NewPattern, PatternStep, add_pattern
from luxx.features.patterns.slots import signature_of, signature_text, slotted_line
from luxx.features.tasks.document import TaskDocument
from luxx.infra.clock import utc_now


def suggest_pattern(session: Session, caller: Caller, document: TaskDocument) -> None:
    """Stores a draft of the steps of a task, where the tenant learns and the user has none of this kind."""
    tenant, now = session.get(Tenant, caller.tenant_id), utc_now()
    if tenant is None or not tenant.learn_patterns or not document.steps:
        return
    goal = f"{document.name}\n{document.goal}"
    signature = signature_of(goal)
    if not signature.words or own_of_kind(session.connection(), signature, caller.user_id, now):
        return

    def text(value: str, most: int = MAX_TEXT) -> str:
        return slotted_line(value, names, most)

    names = {name for step in document.steps for name in step.required_tools or ()}
    steps = [
        PatternStep(
            description=text(f"{step.name}: {step.goal}" if step.goal else step.name) or "{text}",
            tools=(step.required_tools or [])[:MAX_STEPS],
            expected_output=text(step.expected_output or ""),
        )
        for step in document.steps[:MAX_STEPS]
    ]
    new = NewPattern(name=text(document.name, NAME_LENGTH) or "Pattern", goal=goal, steps=steps)
    add_pattern(session, caller, new, now, signature=signature_text(signature))
