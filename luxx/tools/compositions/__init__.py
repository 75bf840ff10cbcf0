"""Compositions: chains of tools that their owner has put together, each usable as one tool."""
