"""How calls reach a service."""
