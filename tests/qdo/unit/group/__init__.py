"""Tests of groups on a service that follows a script."""
