"""Claims: a message is delivered to one caller until it is acknowledged or released, or its claim expires."""
