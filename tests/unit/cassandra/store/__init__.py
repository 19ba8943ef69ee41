"""What the store does in Cassandra, on a simulated cluster."""
