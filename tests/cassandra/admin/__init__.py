"""Migrations and garbage collection."""
