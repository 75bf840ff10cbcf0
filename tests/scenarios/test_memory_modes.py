"""The modes of memory and of extraction, which users, projects, conversations, rooms and agents keep."""

from api.server_process import ServerProcess

from scenarios.client import AsyncApiClient, Json


async def test_each_place_keeps_its_mode_of_memory_over_copies_and_files(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        settings = (await ann.ask("PUT", "/settings", {"memory": "ask", "extraction": "on"})).json()["data"]
        assert (settings["memory"], settings["extraction"]) == ("ask", "on")
        project = await ann.post("/projects", {"name": "House", "memory": "off"})
        path = f"/projects/{project['id']}"
        assert (await ann.ask("PUT", path, {"name": "Home"})).json()["data"]["memory"] == "off"
        assert (await ann.ask("PUT", path, {"memory": None})).json()["data"]["memory"] is None

        conversation = await ann.post("/conversations", {"memory": "ask"})
        path = f"/conversations/{conversation['id']}"
        assert (await ann.ask("PUT", path, {"memory": "off"})).json()["data"]["memory"] == "off"
        file = (await ann.ask("GET", f"{path}/export", format="json")).json()
        imported = await ann.post("/conversations/import", file)
        copy = await ann.get(f"/conversations/{imported['conversation_ids'][0]}")
        fork = await ann.post(f"{path}/fork")
        assert copy["memory"] == fork["memory"] == "off"

        agent = await ann.post("/agents", {"name": "Forgetful", "memory": "off"})
        exported = f"/agents/{agent['id']}/export"
        assert "memory: 'off'" in (await ann.ask("GET", exported)).text, "a bare off is a truth value in YAML"
        document = (await ann.ask("GET", exported, format="json")).json()
        assert (await ann.post("/agents/import", document))["memory"] == "off"

        room = await ann.post("/chat-rooms", {"title": "T", "task": "Talk.", "memory": "ask"})
        path = f"/chat-rooms/{room['id']}"
        assert (await ann.ask("PUT", path, {"memory": "off"})).json()["data"]["memory"] == "off"
        file = (await ann.ask("GET", f"{path}/export", format="json")).json()
        copies = [await ann.post("/chat-rooms/import", file), await ann.post(f"{path}/fork")]
        assert [each["memory"] for each in copies] == ["off", "off"]

        wrong: list[tuple[str, str, Json]] = [
            ("PUT", "/settings", {"memory": "never"}),
            ("PUT", "/settings", {"extraction": True}),
            ("POST", "/projects", {"name": "P", "memory": False}),
            ("POST", "/conversations", {"memory": ""}),
            ("POST", "/agents", {"name": "A", "memory": 0}),
            ("PUT", path, {"memory": ["off"]}),
        ]
        for method, route, body in wrong:
            response = await ann.ask(method, route, body)
            field = list(body)[-1]
            assert response.status_code == 400, response.text
            assert f"$.{field}" in response.json()["detail"]["fields"]
