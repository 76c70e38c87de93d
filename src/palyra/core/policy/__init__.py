"""The inputs of policy decisions: effects, approvals, labels, capabilities."""
