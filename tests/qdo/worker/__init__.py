"""Tests of the worker on a real service, with local coordination."""
