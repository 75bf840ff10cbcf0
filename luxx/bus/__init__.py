"""The bus: short messages between the processes that serve one database. Knows nothing of what they say."""
