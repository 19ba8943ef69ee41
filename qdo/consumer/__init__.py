"""The consumer: owns partitions, reads their messages and commits offsets."""
