"""Whole servers and whole users as files: backup and restore, export and import."""
