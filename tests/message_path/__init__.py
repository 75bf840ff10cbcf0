"""How many files and functions of Luxx one message runs through: `python -m tests.message_path`."""
