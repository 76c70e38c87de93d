"""Models and providers, prompts, routing plans and request options."""
