"""What a process with a wrong clock begins with."""
