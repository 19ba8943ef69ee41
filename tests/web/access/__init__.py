"""Credentials, principals, keys that are limited, and rate limits."""
