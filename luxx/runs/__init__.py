"""Runs: durable pieces of work with an event log. Chat, rooms and tasks are their drivers."""
