"""Runs with several turns in one log: rooms and tasks. `interface.py` says what each kind supplies."""
