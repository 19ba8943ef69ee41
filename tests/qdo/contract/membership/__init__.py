"""The members of a group."""
