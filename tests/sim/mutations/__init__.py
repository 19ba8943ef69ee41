"""Mechanisms that are taken out one at a time, and what notices that each is missing."""
