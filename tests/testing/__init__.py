"""The fixtures for the tests of users."""
