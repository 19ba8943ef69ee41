"""Tests of the console in Chromium, on a service with two workers."""
