"""The Google Gemini dialect."""
