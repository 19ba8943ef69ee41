"""What both stores use."""
