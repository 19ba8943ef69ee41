"""Workers that claim, and tasks."""
