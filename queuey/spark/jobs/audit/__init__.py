"""Audits: what producers were told, compared with what is stored and archived."""
