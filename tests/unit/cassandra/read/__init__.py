"""Tests of reads, without a server."""
