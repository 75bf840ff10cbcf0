"""Runs: durable pieces of work with an event log, and the engine that drives them."""
