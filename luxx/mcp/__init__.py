"""MCP servers of the operator: programs in jails whose tools are Luxx tools of one tenant."""
