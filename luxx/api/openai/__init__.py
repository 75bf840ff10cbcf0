"""The OpenAI-compatible API (`/v1`): its models, requests, answers and streams."""
