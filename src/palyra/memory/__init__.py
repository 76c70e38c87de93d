"""From the past to the prompt."""
