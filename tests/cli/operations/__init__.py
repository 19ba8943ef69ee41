"""Commands that open the store themselves."""
