"""Commands for operators, which start the service or open the store themselves."""
