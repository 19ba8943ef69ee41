"""Operators' use cases beside those of the API: an audit log, dead letters sent back, keys with fewer rights."""
