"""What the terminal shows of the frames of a room's or a task's run; no server."""

import asyncio
import io
import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from luxx.app.cli.chat.rich_screen import RichScreen
from luxx.app.cli.menu import parse_answer, wanted_answer
from luxx.app.cli.runs.room import RoomTranscript, ShownPolicy, ShownRoom, ShownSeat
from luxx.app.cli.runs.task import ShownTask, ShownTaskStep, TaskTranscript
from luxx.app.cli.runs.transcript import RunFrame, RunTranscript
from luxx.app.cli.screen import Piece, PieceKind, Screen, ToolCard, cut_to_width, note
from luxx.features.rooms.policies import PolicyName


def frame(type: str, seq: int = 0, **fields: Any) -> RunFrame:
    decoded = msgspec.json.decode(json.dumps({"type": type, **fields}), type=RunFrame)
    return msgspec.structs.replace(decoded, seq=seq)


def attached(last_seq: int = 0, status: str = "running") -> RunFrame:
    return frame("run", run={"id": "r", "status": status, "last_seq": last_seq})


def shown(transcript: RunTranscript, *frames: RunFrame) -> list[Piece]:
    return [piece for one in frames for piece in transcript.receive(one)]


def said(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if piece.kind in (PieceKind.TEXT, PieceKind.NAME))


def notes(pieces: list[Piece]) -> list[str]:
    return [piece.text for piece in pieces if piece.kind is PieceKind.NOTE]


# --- rooms ------------------------------------------------------------------------------------------


def room(policy: PolicyName = PolicyName.ROUND_ROBIN) -> RoomTranscript:
    seats = [ShownSeat(id=1, name="Ann"), ShownSeat(id=2, name="Bob")]
    policy_shown = ShownPolicy(name=policy.value)
    return RoomTranscript(
        ShownRoom(id="room", title="Talk", status="running", policy=policy_shown, run_id="r", agents=seats)
    )


def starts(msg_id: str, name: str, seq: int) -> RunFrame:
    return frame(
        "message_start",
        seq,
        msg_id=msg_id,
        seat_id=1,
        sender_name=name,
        sender_color="#112233",
        round_number=1,
    )


def chunk(msg_id: str, text: str, **more: Any) -> RunFrame:
    return frame("message_chunk", msg_id=msg_id, content=text, **more)


def ends(msg_id: str, text: str, seq: int, status: str = "complete", finish: str = "stop") -> RunFrame:
    return frame("message_end", seq, msg_id=msg_id, content=text, token_count=1, status=status, finish=finish)


def test_a_message_grows_behind_the_name_of_its_seat() -> None:
    pieces = shown(
        room(), attached(), starts("m", "Ann", 1), chunk("m", "Hel"), chunk("m", "lo"), ends("m", "Hello", 2)
    )
    assert said(pieces) == "Ann: Hello\n\n"
    assert pieces[0] == Piece(PieceKind.NAME, "Ann: ", "#112233")


def test_messages_that_grow_at_once_are_shown_one_after_the_other() -> None:
    pieces = shown(
        room(),
        attached(),
        starts("a", "Ann", 1),
        starts("b", "Bob", 2),
        chunk("b", "B"),
        chunk("a", "A"),
        chunk("b", "ob"),
        ends("b", "Bob!", 3),
        chunk("a", "nn"),
        ends("a", "Ann!", 4),
    )
    assert said(pieces) == "Ann: Ann!\n\nBob: Bob!\n\n"


def test_a_person_who_speaks_meanwhile_is_shown_behind_the_message_that_grows() -> None:
    stored = {"id": "p", "seat_id": None, "content": "Wait", "sender_name": "carol", "sender_color": None}
    pieces = shown(
        room(),
        attached(),
        starts("a", "Ann", 1),
        chunk("a", "A"),
        frame("message", 2, message=stored),
        chunk("a", "nn"),
        ends("a", "Ann", 3),
        frame("message", 4, message={**stored, "id": "a", "seat_id": 1, "content": "Ann"}),
    )
    assert said(pieces) == "Ann: Ann\n\ncarol: Wait\n\n"


def test_a_reply_is_shown_behind_a_line_that_says_what_it_answers() -> None:
    stored = {"id": "p", "seat_id": None, "content": "Wait", "sender_name": "carol", "sender_color": None}
    quoted = {"sender_name": "Ann", "text": "Let us begin"}
    shapes = [{"reply_to": "a", "quoted": quoted}, {"reply_to": "b", "quoted": None}, {}]
    events = [
        frame("message", number, message={**stored, "id": f"p{number}", **shape})
        for number, shape in enumerate(shapes, 1)
    ]
    pieces = shown(room(), attached(), *events)
    assert said(pieces) == "carol: Wait\n\n" * 3
    assert notes(pieces) == [
        "carol replies to Ann: “Let us begin”",
        "carol replies to a message that was deleted",
    ]
    assert [piece.kind for piece in pieces[:2]] == [PieceKind.NOTE, PieceKind.NAME]


def test_a_snapshot_after_attaching_again_shows_only_what_was_missed() -> None:
    pieces = shown(
        room(),
        attached(),
        starts("m", "Ann", 1),
        chunk("m", "Hel"),
        attached(1),
        chunk("m", "Hello wo", is_snapshot=True),
        chunk("m", "rld"),
        ends("m", "Hello world", 2),
    )
    assert said(pieces) == "Ann: Hello world\n\n"


def test_a_message_made_again_after_a_crash_is_not_repeated_where_it_is_the_same() -> None:
    transcript = room()
    before = [attached(), starts("m", "Ann", 1), chunk("m", "Hello wo"), attached(1)]
    same = shown(transcript, *before, chunk("m", "Hel"), chunk("m", "lo world"), ends("m", "Hello world", 2))
    assert said(same) == "Ann: Hello world\n\n"
    other = shown(room(), *before, chunk("m", "Good day"), ends("m", "Good day", 2))
    assert notes(other) == ["[the server restarted this message]"]
    assert said(other) == "Ann: Hello woGood day\n\n"


def test_events_that_were_received_are_not_shown_again() -> None:
    transcript = room()
    frames = [attached(), starts("m", "Ann", 1), ends("m", "Hello", 2)]
    assert said(shown(transcript, *frames)) == "Ann: Hello\n\n"
    assert shown(transcript, *frames) == []


def test_a_turn_that_fails_without_a_text_does_not_hold_back_the_others() -> None:
    failure = frame("agent_error", 2, msg_id="a", seat_id=1, sender_name="Ann", message="no key", code="c")
    pieces = shown(
        room(), attached(), starts("a", "Ann", 1), failure, starts("b", "Bob", 3), ends("b", "Hi", 4)
    )
    assert notes(pieces) == ["Ann failed: no key"]
    assert said(pieces) == "Bob: Hi\n\n"


def test_a_cut_message_and_one_without_a_text_are_noted() -> None:
    pieces = shown(
        room(),
        attached(),
        starts("a", "Ann", 1),
        ends("a", "Half", 2, status="partial"),
        starts("b", "Bob", 3),
        ends("b", "", 4),
        starts("c", "Cid", 5),
        ends("c", "Too lo", 6, finish="length"),
    )
    assert notes(pieces) == [
        "Ann was cut",
        "Bob says nothing",
        "Cid's message was cut at the limit of tokens of the model",
    ]


@pytest.mark.parametrize(
    ("frames", "status"),
    [
        ([frame("room_completed", 1, stop_reason="rounds", rounds=2)], "completed"),
        ([frame("room_completed", 1, stop_reason="cancelled", rounds=2)], "failed"),
        (
            [
                frame("error", 1, message="no money", code="c"),
                frame("room_completed", 2, stop_reason="cost", rounds=1),
            ],
            "failed",
        ),
        ([frame("room_paused", 1, round=1)], "paused"),
        (
            [
                frame("error", 1, message="no seat left", code="no_seat_left"),
                frame("room_paused", 2, round=1),
            ],
            "failed",
        ),
    ],
)
def test_how_a_room_ended(frames: list[RunFrame], status: str) -> None:
    transcript = room()
    shown(transcript, attached(), *frames)
    assert (transcript.has_ended, transcript.status) == (True, status)


def test_a_pause_in_the_log_of_a_room_that_was_resumed_is_not_its_end() -> None:
    transcript = room()
    shown(transcript, attached(1), frame("room_paused", 1, round=1))
    assert not transcript.has_ended
    shown(transcript, frame("room_paused", 2, round=1))
    assert transcript.has_ended
    paused = room()
    shown(paused, attached(1, "paused"), frame("room_paused", 1, round=1))
    assert paused.has_ended


def test_where_a_person_gives_the_floor_the_seats_are_the_choice() -> None:
    transcript = room(PolicyName.MANUAL)
    assert transcript.choices() == []
    shown(transcript, attached(), frame("round_start", 1, round=1, max_rounds=2))
    (choice,) = transcript.choices()
    assert [option.label for option in choice.question.options] == ["Ann", "Bob", "end"]
    assert choice.requests[1] == ("/chat-rooms/room/floor", {"seat_id": 2})
    shown(transcript, frame("floor_given", 2, seat_id=2, by="person", user="ann"))
    assert transcript.choices() == []
    shown(transcript, starts("m", "Bob", 3), ends("m", "Hi", 4))
    (again,) = transcript.choices()
    assert again.question.question_id != choice.question.question_id


def test_questions_of_a_turn_end_with_it() -> None:
    transcript = room()
    asked = frame("question_asked", 2, question_id="q", run_id="r", msg_id="m", prompt="Which?")
    shown(transcript, attached(), starts("m", "Ann", 1), asked)
    assert transcript.questions["q"].prompt == "Ann: Which?"
    shown(transcript, ends("m", "", 3, status="partial"))
    assert transcript.questions == {}


def test_a_correction_is_typed_and_not_chosen_by_its_number() -> None:
    transcript = room()
    options = [{"label": label} for label in ("stop", "continue", "correct", "skip")]
    asked = frame(
        "question_asked", 2, question_id="q", run_id="r", msg_id="m", kind="decision",
        decision_type="doom_loop", prompt="Go on?", options=options,
    )  # fmt: skip
    shown(transcript, attached(), starts("m", "Ann", 1), asked)
    question = transcript.questions["q"]
    lines = ("2", "3", "correct", "Look elsewhere.")
    assert [parse_answer(question, line) for line in lines] == ["continue", None, None, "Look elsewhere."]
    assert "in your own words" in wanted_answer(question)


# --- tasks ------------------------------------------------------------------------------------------


def step(step_id: str, *depends_on: str, approval: bool = False) -> ShownTaskStep:
    return ShownTaskStep(
        id=step_id,
        name=f"Step {step_id}",
        depends_on=[*depends_on],
        status="pending",
        require_approval=approval,
    )


def task(*steps: ShownTaskStep, approval: bool = False, verbose: bool = False) -> TaskTranscript:
    shown_task = ShownTask(
        id="task", name="Report", goal="g", status="running", require_approval=approval, steps=[*steps]
    )
    return TaskTranscript(shown_task, is_verbose=verbose)


def done(step_id: str, seq: int, status: str = "completed", **more: Any) -> RunFrame:
    return frame("step_complete", seq, step_id=step_id, status=status, duration_ms=1500, **more)


def test_the_progress_counts_steps_by_what_became_of_them() -> None:
    transcript = task(step("a"), step("b"), step("c", "b"), step("d"))
    pieces = shown(
        transcript,
        attached(),
        frame("step_start", 1, step_id="a", name="Step a", attempt=1),
        frame("step_start", 2, step_id="b", name="Step b", attempt=2),
        frame("step_start", 3, step_id="d", name="Step d", attempt=1),
        done("a", 4),
        done("b", 5, "failed", error="no key"),
        frame("step_skipped", 6, step_id="c", because="b"),
        frame("cost_update", 7, usage={"total_tokens": 1234}, cost=0.5),
    )
    assert transcript.progress() == (
        "1 of 4 steps done, 1 running (d), 1 failed, 1 left out, 1,234 tokens, $0.5000"
    )
    assert notes(pieces) == [
        "▶ [a] Step a",
        "▶ [b] Step b, attempt 2",
        "▶ [d] Step d",
        "✓ [a] Step a (1.5 s)",
        "✗ [b] Step b (1.5 s): no key",
        "– [c] Step c: left out because of [b]",
    ]


def test_a_plan_is_shown_with_its_dependencies_and_becomes_the_steps() -> None:
    steps = [
        {"id": "s1", "name": "Collect", "depends_on": []},
        {"id": "s2", "name": "Write", "depends_on": ["s1"]},
    ]
    transcript = task()
    pieces = shown(
        transcript,
        attached(),
        frame("planning", 1, step_id="task:plan-1", task_id="task", attempt=1),
        frame("plan_created", 2, task_id="task", steps=steps),
    )
    assert notes(pieces) == ["planning", "the plan has 2 steps:", "  [s1] Collect", "  [s2] Write (after s1)"]
    assert transcript.progress().startswith("0 of 2 steps done")


def test_a_step_with_approval_is_a_choice_once_its_dependencies_are_completed() -> None:
    transcript = task(step("a"), step("b", "a", approval=True))
    shown(transcript, attached())
    assert transcript.choices() == []
    shown(transcript, frame("step_start", 1, step_id="a", name="Step a", attempt=1), done("a", 2))
    (choice,) = transcript.choices()
    assert choice.question.prompt == "May [b] Step b begin?"
    assert choice.requests == [
        ("/tasks/task/approve", {"step_ids": ["b"]}),
        ("/tasks/task/steps/b/skip", None),
        ("/tasks/task/pause", None),
    ]
    shown(transcript, frame("steered", 3, action="approve", user="ann", turns=["b"]))
    assert transcript.choices() == []


def test_an_approval_in_the_rest_of_the_log_is_not_asked_for_again() -> None:
    transcript = task(step("a"), approval=True)
    shown(transcript, attached(2), frame("warning", 1, message="w"))
    assert transcript.choices() == []
    shown(transcript, frame("steered", 2, action="approve", user="ann", turns=[]))
    assert transcript.choices() == []
    fresh = task(step("a"), approval=True)
    shown(fresh, attached())
    assert fresh.choices()[0].requests[0] == ("/tasks/task/approve", {})


def test_the_result_grows_and_its_closing_event_adds_what_is_missing() -> None:
    def delta(**step: Any) -> RunFrame:
        return frame("process_step", step_id="task:result", step={"index": 0, "type": "text", **step})

    transcript = task(step("a"), step("b"))
    pieces = shown(
        transcript,
        attached(),
        delta(delta="All "),
        attached(),
        delta(content="All do"),
        delta(delta="ne"),
        frame("task_complete", 1, status="completed", result="All done."),
    )
    assert said(pieces) == "All done.\n"
    assert transcript.status == "completed"


def test_a_failed_task_says_why() -> None:
    transcript = task(step("a"))
    pieces = shown(
        transcript,
        attached(),
        frame("error", 1, message="no valid plan", code="plan_invalid"),
        frame("task_complete", 2, status="failed", result=None),
    )
    assert notes(pieces)[-1].startswith("failed: no valid plan (")
    assert transcript.status == "failed"


def test_a_task_that_pauses_at_a_limit_says_which_and_forgets_it_when_it_goes_on() -> None:
    limit = frame("error", 1, message="the daily limit is used up", code="limits.tokens_per_day")
    transcript = task(step("a"))
    assert notes(shown(transcript, attached(), limit, frame("task_paused", 2))) == [limit.message]
    assert (transcript.status, transcript.has_ended) == ("paused", True)
    resumed = task(step("a"))
    shown(resumed, attached(3), limit, frame("task_paused", 2), frame("warning", 3, message="w"))
    shown(resumed, frame("task_complete", 4, status="completed", result="r"))
    assert (resumed.status, resumed.error) == ("completed", "")


def test_texts_of_steps_and_thinking_are_shown_if_asked_for() -> None:
    text = frame("process_step", 1, step_id="a", step={"index": 0, "type": "text", "content": "Facts"})
    thinking = frame("process_step", 2, step_id="a", step={"index": 1, "type": "thinking", "content": "Hm"})
    assert notes(shown(task(step("a")), attached(), text, thinking)) == []
    assert notes(shown(task(step("a"), verbose=True), attached(), text, thinking)) == [
        "[a]: Facts",
        "[a] thinks: Hm",
    ]


def test_an_unknown_event_of_a_newer_server_is_left_out() -> None:
    assert shown(task(step("a")), attached(), frame("brand_new", 1, message="x")) == []


# --- the screen -------------------------------------------------------------------------------------


def test_output_without_a_terminal_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.show_progress("1 of 2")
    screen.show(Piece(PieceKind.NAME, "Ann: ", "#ff0000"))
    screen.show(Piece(PieceKind.TEXT, "Hello"))
    screen.note("a note")
    screen.show(Piece(PieceKind.PROGRESS, "1 of 2"))
    assert capsys.readouterr() == ("Ann: Hello\n", "a note\n1 of 2\n")


def test_a_note_does_not_end_a_line_of_text_that_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for keeps_lines, printed in ((True, "Hello"), (False, "Hel\nlo")):
        screen = Screen(keeps_lines=keeps_lines)
        for piece in (Piece(PieceKind.TEXT, "Hel"), Piece(PieceKind.NOTE, "n"), Piece(PieceKind.TEXT, "lo")):
            screen.show(piece)
        assert capsys.readouterr() == (printed, "n\n")


def test_a_line_is_cut_by_its_width_on_the_screen() -> None:
    assert cut_to_width("1 of 2", 10) == "1 of 2"
    assert cut_to_width("1 of 2", 4) == "1 of"
    assert cut_to_width("收集来源", 5) == "收集"


def test_what_is_shown_during_a_question_comes_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.ask([note("? Which?")])
    screen.show(Piece(PieceKind.TEXT, "Hello\n"))
    assert capsys.readouterr() == ("", "? Which?\n")
    screen.release()
    assert capsys.readouterr() == ("Hello\n", "")


def test_a_card_shows_the_items_of_a_to_do_list_and_no_json() -> None:
    items = [{"id": "t1", "title": "Sow leeks", "completed": True}, {"id": "t2", "title": "Water them"}]
    output = io.StringIO()
    card = ToolCard(
        call_id="c", name="todo_write", arguments='{"todos":[]}', duration_ms=3,
        result=json.dumps({"success": True, "data": {"todos": items}}),
    )  # fmt: skip

    async def show() -> None:
        RichScreen(Console(file=output, width=30)).show(Piece(PieceKind.TOOL_RESULT, "", card=card))

    asyncio.run(show())
    lines = [line.strip("│ ") for line in output.getvalue().splitlines()]
    assert lines[1:3] == ["[x] Sow leeks", "[ ] Water them"]
    assert "{" not in output.getvalue()
