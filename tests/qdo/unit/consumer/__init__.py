"""Tests of single parts of the consumer."""
