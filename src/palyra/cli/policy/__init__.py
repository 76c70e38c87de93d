"""`palyra policy`."""
