"""The prompts of a turn: what its next model call sends, and what is left out to fit the context window."""

from functools import partial
from itertools import chain

from msgspec.structs import replace

from luxx.domain.context.messages import RequestImages
from luxx.domain.context.prompt import SHARE_AFTER_CUT, HistorySection, Prompt, SendPrompt, ToolsSection
from luxx.domain.usage.ledger import estimated_tokens
from luxx.errors import ContextTooLong
from luxx.infra.store.tables import first_given
from luxx.providers.adapter import CompletionRequest, run_sized
from luxx.runs.turn.resources import RunResources, asks_to_think
from luxx.runs.turn.state import GivenPrompt, RunSpec, TurnState
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.wire.message import ContextRecord, tool_images
from luxx.wire.run import RunKind
from luxx.wire.tool import ToolChoice, ToolChoiceMode
from luxx.wire.turn_event import ContextCompressed


class TurnPrompt:
    """Makes the prompts of a turn for one drive and one model."""

    def __init__(self, spec: RunSpec, resources: RunResources) -> None:
        self._spec = spec
        self._resources = resources
        self._images = RequestImages()

    async def read_images(self, state: TurnState) -> None:
        """Chooses the newest images for the next request, and reads those of tool results. A model that is
        not known to read images gets none of these: its server could refuse the request."""
        past, resources = self._spec.past, self._resources
        steps = chain(*(message.steps for message in past), state.steps)
        of_tools = {image.sha256: image for image in tool_images(steps)} if resources.card.images else {}
        if of_tools:
            contents = [message.steps if message.user is None else message.user for message in past]
            given = {key for message in past for key in message.images}
            read = partial(resources.read_files, self._spec.user_id)
            await self._images.choose([*contents, state.steps], of_tools, given, read)

    async def request(
        self, state: TurnState, *, with_tools: bool
    ) -> tuple[CompletionRequest, int, ContextCompressed | None]:
        """The request for the next model call of the run, and its estimated tokens; and the event, if more is
        left out than before.

        Without tools the model must call none: they stand in the request all the same, because the cache of
        the provider begins with them.

        Raises ContextTooLong if the last turn alone does not fit the model's window.
        """
        request, window, limit = self._spec.request, self._window, None
        given = request.origin if isinstance(request.origin, GivenPrompt) else None
        if window is not None:
            # Vendors count the longest possible answer too; of some models it is all of the window.
            limit = window - min(request.max_tokens or self._resources.card.max_output, window // 2)
        tools, choice = self._resources.tools, None if given is None else given.tool_choice
        if tools and not with_tools:
            choice = ToolChoice(mode=ToolChoiceMode.NONE)
        prompt = self._prompt(state)
        limits = (window, limit, SHARE_AFTER_CUT * (limit or 0))
        fitted = (await run_sized(prompt.size, prompt.plan, state.context, *limits)).without_summary
        if window is not None and fitted.after > window:
            raise ContextTooLong(
                f"This message and what belongs to it take about {fitted.after:,} tokens, but the context "
                f"window of {request.model} has {window:,}. Send less at once, offer fewer tools, or choose "
                "a model with a larger window."
            )
        completion_request = CompletionRequest(
            model=request.model,
            messages=fitted.messages,
            tools=tools,
            response_schema=request.response_schema,
            stop=request.stop,
            tool_choice=choice,
            parallel_tool_calls=None if given is None else given.parallel_tool_calls,
            caches_prompt=True,
            prompted_thinking=asks_to_think(request, self._resources.card),
            **first_given(request),
        )
        compressed = _compressed(prompt, state.context, fitted, window)
        return completion_request, fitted.estimate, compressed

    def after_overflow(self, state: TurnState) -> ContextCompressed | None:
        """The event that leaves out half of the prompt that was refused; None if nothing can be left out."""
        prompt = self._prompt(state)
        half = prompt.fitted(state.context, self._window, None, 0).before / 2
        fitted = prompt.fitted(state.context, self._window, half, half)
        compressed = _compressed(prompt, state.context, fitted, self._window)
        return None if compressed is None else replace(compressed, overflow=True)

    @property
    def _window(self) -> int | None:
        """The context window of the model, if it is known."""
        return None if self._resources.card.is_unknown else self._resources.card.context_window

    def _prompt(self, state: TurnState) -> Prompt:
        tools = self._resources.tools
        spec, request, newest = self._spec, self._spec.request, self._images.newest
        history = HistorySection(
            owner="runs",
            past=spec.past if newest is None else [message.with_images(newest) for message in spec.past],
            steps=state.steps,
            replay=[dict(note.replay) for note in state.notes],
            has_task=spec.kind != RunKind.CHAT,
            model=request.model,
            read_tool=READ_RESULT_TOOL if any(tool.name == READ_RESULT_TOOL for tool in tools) else "",
            images=self._images.tools,
        )
        tool_tokens = estimated_tokens((), tools, request.response_schema)
        return Prompt(
            [*self._resources.sections, ToolsSection(owner="tools", tokens=tool_tokens), history],
            estimated_tokens,
        )


def _compressed(
    prompt: Prompt, context: ContextRecord, fitted: SendPrompt, window: int | None
) -> ContextCompressed | None:
    """The event of a prompt that leaves out something else than `context`; None if it does not."""
    messages, results = fitted.context.messages, fitted.context.results
    if (messages, results) == (context.messages, context.results):
        return None
    return ContextCompressed(
        messages=messages,
        turns=prompt.left_out_turns(fitted.context),
        results=results,
        tokens_before=fitted.before,
        tokens_after=fitted.after,
        window=window,
    )
