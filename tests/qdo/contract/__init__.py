"""The coordination contract made executable: every test runs on every service."""
