"""Requests and responses of the HTTP API as types: its routes and its client use the same ones, and gRPC some."""
