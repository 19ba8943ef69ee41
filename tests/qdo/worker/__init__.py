"""Tests of the worker on a real service, with a simulated ZooKeeper or a group of the service."""
