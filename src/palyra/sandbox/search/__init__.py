"""Search in files of a workspace."""
