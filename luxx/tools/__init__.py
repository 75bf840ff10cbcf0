"""Tools: definitions, the `@tool` decorator, and the executor of all tool calls."""
