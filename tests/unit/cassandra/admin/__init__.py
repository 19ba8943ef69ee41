"""Findings of the doctor."""
