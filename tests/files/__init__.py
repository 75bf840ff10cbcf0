"""Files: uploads, downloads, attachments."""
