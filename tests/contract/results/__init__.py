"""Results of jobs, on every store."""
