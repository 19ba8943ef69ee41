"""The test suite, sorted by what its tests need."""
