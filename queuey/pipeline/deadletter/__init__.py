"""Dead letters: listed, grouped by error, and sent back."""
