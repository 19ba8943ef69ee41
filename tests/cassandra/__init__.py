"""What only the Cassandra store has: its own parts, on a real server where they need one."""
