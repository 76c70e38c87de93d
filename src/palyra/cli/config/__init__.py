"""`palyra config`."""
