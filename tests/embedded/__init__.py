"""Services inside a program: over no socket, on real stores."""
