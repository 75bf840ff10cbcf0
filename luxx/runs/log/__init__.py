"""The event log of a run: append, read, replay, retention."""
