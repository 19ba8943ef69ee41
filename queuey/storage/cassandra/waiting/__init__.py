"""Readers that wait for messages, and what wakes them."""
