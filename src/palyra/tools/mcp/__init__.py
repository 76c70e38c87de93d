"""Tools of MCP servers: how servers are kept running, what of theirs is offered, and how it is called."""
