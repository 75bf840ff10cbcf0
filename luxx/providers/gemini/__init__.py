"""The dialect of Google Gemini."""
