"""Audits: receipts of producers, compared with what is stored and archived."""
