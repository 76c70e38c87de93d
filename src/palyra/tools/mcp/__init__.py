"""Tools of MCP servers: keeps servers running, decides what is offered, and calls it."""
