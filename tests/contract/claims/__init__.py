"""Tests of the contract of claim logs, and of claims as use cases on every store."""
