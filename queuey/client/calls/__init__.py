"""Builds the request of each API call and decodes its answer."""
