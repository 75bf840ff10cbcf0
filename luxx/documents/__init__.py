"""What others wrote, made into text: PDFs and web pages, read in processes that may be killed."""
