"""Tests of the nouns and their rules, without I/O."""
