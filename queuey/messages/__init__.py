"""Messages: post, read by time, stream, fetch and replace by name, and mark as read."""
