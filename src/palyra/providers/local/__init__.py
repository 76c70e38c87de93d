"""Model files that run in this process."""
