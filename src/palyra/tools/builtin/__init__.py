"""The built-in tools; files here do not import one another."""
