"""Measurements of a real daemon: what a turn, an entry, a start and a long life cost."""
