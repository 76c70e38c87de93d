"""`palyra providers`."""
