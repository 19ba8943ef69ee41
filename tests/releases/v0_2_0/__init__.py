"""The record of version 0.2.0."""
