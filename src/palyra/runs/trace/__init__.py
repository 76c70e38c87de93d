"""Traces of what happened: a tape as a tree of causes."""
