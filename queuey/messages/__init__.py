"""Messages: post, read by time or early, stream, fetch and replace by name, and mark as read."""
