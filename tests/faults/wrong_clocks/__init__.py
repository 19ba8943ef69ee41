"""The start-up code of a process with a wrong clock."""
