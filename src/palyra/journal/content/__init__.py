"""Content stored by digest: artifacts, file checkpoints, images."""
