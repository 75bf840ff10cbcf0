"""Conversations between a user and an agent, and their messages."""
