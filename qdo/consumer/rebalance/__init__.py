"""Group membership: sessions, the partitions of each session, and how partitions change owners."""
