"""Backups, restores, and tapes that were rotated to files."""
