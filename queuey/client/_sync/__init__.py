"""The client for threads. Do not edit it: ``python deploy/unasync.py`` writes it from :mod:`queuey.client._sync`."""
