"""`palyra journal`."""
