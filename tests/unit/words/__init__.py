"""The words of docstrings, names and messages."""
