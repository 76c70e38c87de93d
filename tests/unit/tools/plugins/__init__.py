"""Plugins: their manifests, how they are kept, and what comes of a call."""
