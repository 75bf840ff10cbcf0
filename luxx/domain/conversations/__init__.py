"""Conversations, their messages and branches, projects and search."""
