"""The daemon's APIs, and the client that the command line uses."""
