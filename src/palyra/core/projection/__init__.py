"""Projections: database rows derived from events by pure functions."""
