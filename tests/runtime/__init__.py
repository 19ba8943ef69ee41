"""Tests of what every use case runs on."""
