"""Tests of the worker's decisions and bookkeeping."""
