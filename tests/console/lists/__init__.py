"""Tests of the lists of the console: overviews, queues, groups and failures."""
