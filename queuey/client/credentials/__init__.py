"""The servers of a client, its credential and its tokens."""
