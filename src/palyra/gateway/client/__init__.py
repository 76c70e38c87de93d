"""The client of the daemon's APIs, which the command line uses."""
