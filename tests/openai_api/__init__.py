"""The OpenAI-compatible API, used with real clients."""
