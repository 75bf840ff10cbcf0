"""Scenarios: what a client of a real server sees, from the first byte to the time after a crash."""
