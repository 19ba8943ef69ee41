"""Tests of the facades in process: the protocols of other systems, and that their queues are ordinary queues."""
