"""Queues and their options: create, list, change, describe and delete them."""
