"""Load generators and their traffic."""
