"""Users with tokens and assertions, and the issuers of these."""
