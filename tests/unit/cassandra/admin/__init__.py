"""Tests of the findings of the doctor."""
