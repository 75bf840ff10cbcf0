"""Extraction of facts from messages: episodes, what a model is asked about them, what its answers change."""
