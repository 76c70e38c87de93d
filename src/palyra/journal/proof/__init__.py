"""Proof of the tapes: chains, anchors, attestations, exports."""
