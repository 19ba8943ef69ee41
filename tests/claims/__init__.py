"""Tests of claims: their rules and their log, and over HTTP."""
