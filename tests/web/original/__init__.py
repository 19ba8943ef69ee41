"""The original's clients."""
