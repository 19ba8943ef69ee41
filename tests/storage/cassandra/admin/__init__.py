"""Tests of migrations and garbage collection."""
