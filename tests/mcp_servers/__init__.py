"""MCP servers: one made with the official SDK, hostile ones, and what users of their tenant get from them."""
