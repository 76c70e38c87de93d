"""The tree of causes that `palyra why` shows."""
