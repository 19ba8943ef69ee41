"""Tests of consumer groups: their rules, and members and offsets over HTTP."""
