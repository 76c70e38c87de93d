"""`palyra doctor`."""
