"""Audits: receipts of producers, compared with stored and archived messages."""
