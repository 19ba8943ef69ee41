"""Commands for operators: they start the service, or open the store themselves."""
