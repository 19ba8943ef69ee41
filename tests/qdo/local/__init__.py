"""What only local coordination has: its file, its wakeup sockets, its thread."""
