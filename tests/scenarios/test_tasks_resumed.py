"""A step that a pause cut begins anew after `resume`, even if the server is killed in it."""

from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import USUAL

STEP = r"Your step \[a\]"


def two_attempts() -> Script:
    """The first attempt calls a tool and is cut in its second completion; the second is killed at once."""
    call = Call(name="python_eval", arguments='{"expression": "6 * 7"}')
    return Script(
        rules=[
            Rule(name="calls", when=When(user=STEP, call=1), reply=[call, USUAL]),
            Rule(name="is cut", when=When(user=STEP, call=2), reply=[Text(text="Half "), Gate(name="cut")]),
            Rule(
                name="is killed", when=When(user=STEP, call=3), reply=[Text(text="New "), Gate(name="kill")]
            ),
            Rule(name="answers", when=When(user=STEP), reply=[Text(text="Whole"), USUAL]),
        ]
    )


async def test_a_cut_step_begins_anew_wherever_its_server_is_killed(own_server: ServerProcess) -> None:
    async with ScriptedProvider(two_attempts()) as model, RestartingClient(own_server) as ann:
        provider_id = await ann.connect(model.url)
        step = {"id": "a", "name": "A", "goal": "Do it"}
        body = {"name": "Report", "goal": "Write it", "provider_id": provider_id, "steps": [step]}
        task_id = (await ann.post("/tasks", body))["id"]
        asked = {"accept": "application/json"}
        await ann.ask("POST", f"/tasks/{task_id}/execute", headers=asked)
        await model.arrived(2)
        await ann.post(f"/tasks/{task_id}/pause")
        await ann.ask("POST", f"/tasks/{task_id}/resume", headers=asked)
        await model.arrived(3)
        await ann.kill_and_start()
        run_id = (await ann.get(f"/tasks/{task_id}"))["run_id"]
        await ann.follow_all(run_id)
        task = await ann.get(f"/tasks/{task_id}")
        assert (task["status"], task["result"], task["steps"][0]["attempts"]) == ("completed", "Whole", 2)
        answered = next(request for request in model.requests if request.rule == "answers")
        assert [message["role"] for message in answered.json["messages"]][-1] == "user"
