"""Tests of a group's member on simulated ZooKeeper servers."""
