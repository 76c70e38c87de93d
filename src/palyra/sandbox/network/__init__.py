"""Requests to the internet: URLs, addresses, egress."""
