"""The dialect of the Anthropic Messages API."""
