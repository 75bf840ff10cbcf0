"""The HTTP API over a real server process; `server.py` starts it, `person.py` talks to it."""
