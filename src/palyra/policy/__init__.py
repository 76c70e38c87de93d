"""Decides whether a call may run: Cedar policies, the risk of a call, and the grants of earlier approvals."""
