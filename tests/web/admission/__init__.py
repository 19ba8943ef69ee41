"""Tests of how the service is shared between applications."""
