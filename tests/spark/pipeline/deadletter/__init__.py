"""Dead letters."""
