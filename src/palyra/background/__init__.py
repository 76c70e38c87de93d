"""Work that nobody waits for: the queue, its jobs, and the anchors."""
