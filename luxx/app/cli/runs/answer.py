"""An answer of a chat: the message that asks for it, and what the terminal shows of its run."""

import asyncio
from collections import defaultdict
from functools import partial
from typing import Any

import msgspec

from luxx.app.cli.menu import FrameQuestion
from luxx.app.cli.runs.task import StepLines
from luxx.app.cli.runs.transcript import (
    EXIT_FAILED,
    EXIT_STOPPED,
    FollowedSubject,
    FrameStep,
    RunFrame,
    RunTranscript,
)
from luxx.app.cli.screen import FINISH_NOTES, GrowingText, Piece, PieceKind, note
from luxx.app.cli.server_api import ObjectWithId, ServerApi
from luxx.errors import LuxxError
from luxx.features.tasks.graph import PLAN
from luxx.wire.event import DoneStatus
from luxx.wire.run import ChosenBy, StopReason
from luxx.wire.todos import REMINDER
from luxx.wire.tool import SKILL_STEPS
from luxx.wire.turn import StepType

QUESTION_COLOR = "#d7af5f"
_BY_A_PERSON = ("", StopReason.CANCELLED)
"""The `stop_reason` of an answer that a person stopped; logs of older versions have none."""

POLL_TRIES = 5
POLL_SECONDS = 0.4


class ConversationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation's execution status that tells its newest run."""

    run: ObjectWithId | None


async def newest_run(server: ServerApi, conversation_id: str) -> str:
    """The id of the conversation's newest run, subagents' runs excluded, or an empty string."""
    path = f"/conversations/{conversation_id}/execution-status"
    status = await server.call("GET", path, ConversationStatus)
    return status.run.id if status.run is not None else ""


class SentMessage:
    """A message of a chat whose run is followed. `is_accepted`: the server has it."""

    def __init__(self, server: ServerApi, conversation_id: str, body: dict[str, Any]) -> None:
        self.body = {"conversation_id": conversation_id, **body}
        self.is_accepted = False
        self._server = server
        self._conversation_id = conversation_id
        self._run_before = ""

    async def remember_newest_run(self) -> None:
        """Without it, the conversation has no run yet."""
        self._run_before = await newest_run(self._server, self._conversation_id)

    async def run_id(self) -> str:
        """The run of the message, or an empty string while there is none."""
        newest = await newest_run(self._server, self._conversation_id)
        return "" if newest == self._run_before else newest

    async def wait_for_run(self) -> str:
        """The run of the message, whose stream broke before its first frame. Raises LuxxError for none."""
        for _ in range(POLL_TRIES):
            if run_id := await self.run_id():
                return run_id
            await asyncio.sleep(POLL_SECONDS)
        self.is_accepted = False
        raise LuxxError("the connection was lost before the server accepted the message; send it again")


class AnswerTranscript(RunTranscript):
    """The transcript of the run of a chat."""

    subagent_prefix = "[a subagent] "

    def __init__(self, conversation_id: str) -> None:
        subject = FollowedSubject(
            what="answer",
            id=conversation_id,
            again=f"luxx chat --conversation {conversation_id}",
            takes_lines=False,
            question_color=QUESTION_COLOR,
            shows_all_questions=True,
            prints_state=True,
            says_waiting=True,
            says_closed_output=False,
        )
        super().__init__(subject)
        self.thinking = ""
        """What the model thought last."""
        self._finish = self._stop_reason = ""
        # By the index of the step of the answer.
        self._plan = StepLines({})
        self._texts: dict[int, GrowingText] = defaultdict(partial(GrowingText, "step"))
        self._thoughts: dict[int, GrowingText] = defaultdict(partial(GrowingText, "step", PieceKind.THINKING))

    def receive_event(self, frame: RunFrame) -> list[Piece]:
        match frame.type:
            case "run":
                for growing in (*self._texts.values(), *self._thoughts.values()):
                    growing.text = ""
            case "done":
                self._finish, self._stop_reason = frame.finish or "", frame.stop_reason
            case "process_step" if frame.step_id:
                pass  # Of a step of its plan, whose result the answer is made from.
            case "process_step" if frame.step is not None and not frame.step.notice:
                return self._receive_step(frame.step, is_logged=frame.seq > 0)
            case "subagent_assigned":
                return [note(f"The agent {frame.agent_name} answers{_because(frame)}.")]
            case "skill_activated" if frame.by != ChosenBy.MODEL:
                return [note(f"The skill {frame.name} is active{_because(frame)}.")]
            case "pattern_used":
                return [note(f"The pattern “{frame.name}” is given as reference.")]
            case _:
                return self._plan.receive(frame)
        return []

    def _receive_step(self, step: FrameStep, *, is_logged: bool) -> list[Piece]:
        if step.type == StepType.USER and step.name == REMINDER:
            return [note("The model is reminded of what is left to do.")] if is_logged else []
        if step.type == StepType.USER and step.name in SKILL_STEPS:
            return []  # `skill_activated` or `pattern_used` follows.
        if step.type == StepType.USER:
            return [note(f"> {step.content}")] if is_logged else []
        if step.type == StepType.TEXT:
            growing = self._texts[step.index]
        elif step.type == StepType.THINKING:
            growing = self._thoughts[step.index]
            self.thinking = step.added_to(growing.text)
        else:
            return []
        growing.text = step.added_to(growing.text)
        return growing.rest(is_whole=is_logged)

    def turn_name(self, frame: RunFrame) -> str:
        if frame.step_id.startswith(PLAN):
            return "the plan"
        return f"[{frame.step_id}]" if frame.step_id else ""

    def outcome(self, *, is_stopped: bool) -> tuple[int, list[str]]:
        if self.status == DoneStatus.FAILED:
            return EXIT_FAILED, [f"error: {self.error or 'the answer failed'}"]
        if is_stopped or (self.status == DoneStatus.STOPPED and self._stop_reason in _BY_A_PERSON):
            return EXIT_STOPPED, ["stopped"]
        if self.error:
            return EXIT_FAILED, [f"the answer was stopped: {self.error}"]
        notes: list[str] = []
        if self.status == DoneStatus.MAX_ITERATIONS_REACHED:
            notes.append("the model reached its tool call limit and was asked to finish")
        if self._finish in FINISH_NOTES:
            notes.append(f"the answer {FINISH_NOTES[self._finish]}")
        return 0, notes

    def waiting(self, question: FrameQuestion, path: str) -> str:
        del question
        return (
            f"the answer waits for a person; `{self.subject.again}` at a terminal asks you, or give it with "
            f"POST {path}"
        )


def _because(frame: RunFrame) -> str:
    """Why a skill or an agent acts, if the words of the message chose it."""
    if frame.by != ChosenBy.ROUTER:
        return ""
    return f": the words of the message ask for it (score {frame.score or 0:.1f})"
