"""What a group promises under faults: real workers are killed and paused, and a checker judges what was recorded."""
