"""Posting messages, and messages by id."""
