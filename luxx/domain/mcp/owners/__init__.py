"""The process that has a stateful connection to an MCP server, and calls over it from other processes."""
