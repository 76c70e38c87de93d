"""Confined paths: roots, workspaces, file changes."""
