"""Counts the files and functions of Luxx that one message runs through: `python -m tests.message_path`."""
