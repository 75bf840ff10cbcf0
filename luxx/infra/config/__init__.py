"""The configuration: its schema, and how files and environment variables are read."""
