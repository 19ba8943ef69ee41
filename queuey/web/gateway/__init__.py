"""From a server's processes and event loop to the views, and back."""
