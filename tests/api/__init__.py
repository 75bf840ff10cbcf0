"""The HTTP API of a real server process: `server_process.py` starts it, `client.py` sends requests."""
