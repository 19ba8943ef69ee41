"""The HTTP engine in front of the use cases."""
