"""What people do by hand beside what the API offers: an audit log, dead letters sent back, keys with fewer rights."""
