"""Owners of partitions, and their recorded offsets."""
