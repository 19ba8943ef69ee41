"""The load generators, and the traffic that they send."""
