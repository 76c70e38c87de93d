"""Derived tables compared with the tapes, and rebuilt."""
