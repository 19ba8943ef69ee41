"""The bench: how results become the tables of the pages."""
