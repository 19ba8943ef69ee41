"""How calls reach the service: servers, attempts, retries, connections."""
