"""What operators ask: why a message is not delivered, what happened when, how busy and how healthy it is."""
