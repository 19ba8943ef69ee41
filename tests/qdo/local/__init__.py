"""What only local coordination has: its file, its bells, its thread."""
