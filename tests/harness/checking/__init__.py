"""The checker of recorded histories, for runs about messages, claims and groups: records in, violations out."""
