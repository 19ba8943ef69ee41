"""Finds a client's servers and credential, and keeps its token valid."""
