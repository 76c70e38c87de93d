"""The dialects: requests, answers and schemas of each provider's API."""
