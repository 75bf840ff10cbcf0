"""Runs: durable pieces of work with an event log, and who drives them."""
