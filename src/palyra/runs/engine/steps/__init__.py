"""One file for each kind of step that the loop executes."""
