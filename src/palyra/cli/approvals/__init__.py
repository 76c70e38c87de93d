"""`palyra approvals`."""
