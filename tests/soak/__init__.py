"""Everything at once for any length of time, with kills. See :mod:`tests.soak.__main__`."""
