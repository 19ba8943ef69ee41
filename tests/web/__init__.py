"""The web package on a real store, called in process as a WSGI server would call it."""
