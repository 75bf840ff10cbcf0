"""Compositions: chains of tools that a user defines, each usable as one tool."""
