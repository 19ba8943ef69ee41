"""Archives: messages in files, checked against the store, and replayed."""
