"""Rooms: several agents and people in one discussion, driven by one run."""
