"""The server and worker processes: start-up, serving, maintenance jobs."""
