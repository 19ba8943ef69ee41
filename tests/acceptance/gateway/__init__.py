"""The gateway of a real service."""
