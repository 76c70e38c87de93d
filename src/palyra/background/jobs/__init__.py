"""One file for each kind of task."""
