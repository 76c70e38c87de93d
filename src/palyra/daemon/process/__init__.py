"""The daemon as a process: its home folder, clock, signals, sockets and limits."""
