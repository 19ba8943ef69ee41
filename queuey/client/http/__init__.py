"""HTTP: servers, attempts, retries and connections."""
