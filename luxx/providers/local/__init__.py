"""The embedded model: its files and its server process."""
