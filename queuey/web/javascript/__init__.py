"""The client for browsers and Node, served at ``/client/queuey.js``."""
