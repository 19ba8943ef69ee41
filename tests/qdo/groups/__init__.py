"""Groups of members on real coordination services, several in one loop."""
