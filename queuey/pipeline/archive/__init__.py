"""Archives: messages kept in files or tables, checked against the store, and replayed."""
