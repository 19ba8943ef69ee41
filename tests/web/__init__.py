"""The web room, called in process as a WSGI server would call it, on a real store."""
