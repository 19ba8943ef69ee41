"""Logins to the console, and their sessions."""
