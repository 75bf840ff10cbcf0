"""A user's files as people handle them: upload, list, download, delete, attach to a message."""
