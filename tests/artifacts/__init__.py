"""Artifacts: their sources, versions, files and runs."""
