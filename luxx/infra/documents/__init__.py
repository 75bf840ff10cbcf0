"""Text of web pages and PDF files, read in a separate process."""
