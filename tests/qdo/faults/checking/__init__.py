"""Histories and what they are checked against."""
