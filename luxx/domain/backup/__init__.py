"""Backup and restore of an installation, export and import of a user."""
