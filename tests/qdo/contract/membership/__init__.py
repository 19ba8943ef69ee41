"""Who is in a group."""
