"""Journeys: what a client of a real server sees, from the first byte to after the crash."""
