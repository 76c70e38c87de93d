"""The words and the rules of the domain: no input, no output, no waiting."""
