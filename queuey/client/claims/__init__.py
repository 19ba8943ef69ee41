"""Claims of jobs: made, renewed while the job runs, and acknowledged."""
