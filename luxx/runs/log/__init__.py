"""The event log of a run: append, read, replay, retention, and its live tail."""
