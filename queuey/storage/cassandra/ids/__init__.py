"""Ids of messages, and the clock that they are made with."""
