"""Trust labels of results and of what programs write."""
