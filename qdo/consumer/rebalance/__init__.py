"""Membership in a group: sessions, the partitions of each, and how partitions change owners."""
