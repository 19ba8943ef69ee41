"""Services inside a program, without a socket, on real stores."""
