"""`palyra chat` and `palyra run`."""
