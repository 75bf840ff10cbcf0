"""What is deleted is gone from every route."""

from api.client import ApiClient


def say(person: ApiClient, content: str) -> tuple[str, dict[str, str]]:
    """A conversation with one answered message. Returns its id and the ids of its messages and its run."""
    conversation = person.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": content}
    answer = person.good("POST", "/messages", json=body)
    (run,) = person.good("GET", f"/runs?subject_id={conversation}")["items"]
    return conversation, {"answer": answer["id"], "asked": answer["parent_id"], "run": run["id"]}


def test_the_log_of_a_deleted_message_is_gone_and_its_cost_is_not(anna: ApiClient) -> None:
    conversation, ids = say(anna, "Keep this between us.")
    assert anna.good("GET", f"/runs/{ids['run']}")["status"] == "completed"
    anna.good("DELETE", f"/messages/{ids['asked']}")

    assert anna.good("GET", f"/messages?conversation_id={conversation}")["items"] == []
    anna.bad("GET", f"/runs/{ids['run']}", 404)
    anna.bad("GET", f"/runs/{ids['run']}/events", 404, headers={"accept": "application/json"})
    assert anna.good("GET", f"/conversations/{conversation}")["selected_leaf_id"] is None


def test_deleting_an_answer_keeps_the_question_and_one_can_go_on(anna: ApiClient) -> None:
    conversation, ids = say(anna, "What did I say?")
    anna.good("DELETE", f"/messages/{ids['answer']}")

    left = anna.good("GET", f"/messages?conversation_id={conversation}")["items"]
    assert [message["id"] for message in left] == [ids["asked"]]
    assert anna.good("GET", f"/conversations/{conversation}")["selected_leaf_id"] == ids["asked"]
    body = {"conversation_id": conversation, "content": "And now?"}
    assert anna.good("POST", "/messages", json=body)["status"] == "complete"


def test_a_deleted_conversation_takes_its_runs_along(anna: ApiClient) -> None:
    conversation, ids = say(anna, "Forget me.")
    anna.good("DELETE", f"/conversations/{conversation}")
    anna.bad("GET", f"/runs/{ids['run']}", 404)
    anna.bad("DELETE", f"/messages/{ids['answer']}", 404)
