"""Tests of providers, which cost tokens like any other call: they need a daily limit that is not reached, and
are entered in the ledger.
"""

from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.context.tokens import estimated_usage
from luxx.domain.usage.ledger import PROVIDER_TEST, UsageEntry, record
from luxx.domain.usage.reserve import check_daily_limits, limits_of
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.providers.adapter import CompletionRequest
from luxx.providers.catalog import ModelCard
from luxx.providers.check import ProviderCheck
from luxx.providers.client import Completion
from luxx.providers.queries import visible_row
from luxx.providers.service import ProviderService
from luxx.wire.turn import Step, StepStatus, StepType


@dataclass(frozen=True, slots=True)
class ProviderTests:
    """One per process."""

    store: Store
    providers: ProviderService
    limits: LimitsConfig

    async def test(self, caller: Caller, provider_id: int) -> ProviderCheck:
        """Tests a provider and records what its answer took. Raises NotFound, and TooMany if a daily limit is
        reached."""

        def check_limits(session: Session) -> None:
            row = visible_row(session, caller, provider_id)
            is_own = row.user_id == caller.user_id
            limits = limits_of(self.limits, caller.permission_level, is_own_provider=is_own)
            check_daily_limits(session.connection(), caller.user_id, limits, utc_now())

        await self.store.read(check_limits)
        entries: list[UsageEntry] = []

        def on_answer(card: ModelCard, request: CompletionRequest, completion: Completion) -> None:
            entries.append(_entry(caller, provider_id, card, request, completion))

        check = await self.providers.test(caller, provider_id, on_answer=on_answer)
        for entry in entries:
            await self.store.write_rows(partial(record, entry=entry))
        return check


def _entry(
    caller: Caller, provider_id: int, card: ModelCard, request: CompletionRequest, completion: Completion
) -> UsageEntry:
    usage, is_estimated = completion.usage, not completion.usage.total_tokens
    if is_estimated:
        text = Step(
            id="", index=0, type=StepType.TEXT, content=completion.thinking + completion.text,
            status=StepStatus.DONE,
        )  # fmt: skip
        usage = estimated_usage(usage, request.messages, (), [text], max_tokens=request.max_tokens)
    return UsageEntry(
        user_id=caller.user_id,
        tenant_id=caller.tenant_id,
        run_id="",
        subject_id="",
        provider_id=provider_id,
        model=request.model,
        kind=PROVIDER_TEST,
        usage=usage,
        cost=card.cost(usage),
        is_estimated=is_estimated,
    )
