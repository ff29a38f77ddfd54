"""The HTTP API: what programs and people ask over the network."""
