"""Tests of the contract of reads."""
