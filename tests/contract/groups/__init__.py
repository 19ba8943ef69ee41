"""Tests of consumer groups on every store: promises to members, and state, sessions and owners in the store."""
