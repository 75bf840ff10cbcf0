"""Files of a workspace, uploads and attachments."""
