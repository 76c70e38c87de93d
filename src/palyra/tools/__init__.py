"""The agent's tools: the catalog, the check of arguments, the execution, one file per family of tools."""
