"""The web room on a real store, called in process as a WSGI server would call it."""
