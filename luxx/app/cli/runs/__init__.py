"""Runs at the terminal: following them, and what is shown of a chat's, a room's and a task's."""
