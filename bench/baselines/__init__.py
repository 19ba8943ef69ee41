"""What the service is compared with: small, careful programs that do the same work without it."""
