"""Everything at once for as long as wanted, with kills; see :mod:`tests.soak.__main__`."""
