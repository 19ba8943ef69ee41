"""Between granian's processes and event loop, and the WSGI application."""
