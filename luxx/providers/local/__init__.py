"""The embedded model: its files, its server process, and the adapter in front of it."""
