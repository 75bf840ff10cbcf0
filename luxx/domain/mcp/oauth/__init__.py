"""Signing in at MCP servers with OAuth."""
