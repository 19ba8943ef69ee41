"""How requests end, in any way, and how the service ends with its background tasks."""
