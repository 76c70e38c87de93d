"""The parts of a daemon: each a frozen struct with one builder."""
