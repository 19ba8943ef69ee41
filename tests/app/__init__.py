"""Tests of the service put together: its document, its pages, its paths, the store that it opens."""
