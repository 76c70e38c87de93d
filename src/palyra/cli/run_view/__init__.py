"""How a run is shown while it is followed."""
