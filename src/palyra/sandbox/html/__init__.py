"""Converts HTML pages to text."""
