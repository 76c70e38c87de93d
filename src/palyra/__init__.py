"""Palyra: a self-hosted agent daemon whose every step is on a durable tape."""
