"""Tests of archives and replays."""
