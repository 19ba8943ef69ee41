"""Tests of the jobs of the pipeline."""
