"""Consumer groups on every store: what members are promised, and state, sessions and owners in the store."""
