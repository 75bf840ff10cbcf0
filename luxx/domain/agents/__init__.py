"""Agents: stored templates that conversations, room seats, task steps and delegation use."""
