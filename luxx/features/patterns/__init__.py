"""Learned patterns: ways of working taken from runs that succeeded, without the data of these runs."""
