"""Promises of a group under faults: workers are killed and paused, and a checker verifies the records."""
