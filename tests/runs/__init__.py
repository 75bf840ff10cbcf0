"""Runs below the HTTP API: logs, the fold, completions, prompts, the live tail, notices and storage."""
