"""Workspace files, uploads and message attachments."""
