"""Consumer groups over HTTP: members, and who may do what with them."""
