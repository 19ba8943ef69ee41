"""What ends: requests, in any way, and the service with what it does in the background."""
