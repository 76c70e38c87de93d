"""What the agent can do: the catalog, the check of arguments, the execution, one file per family of tools."""
