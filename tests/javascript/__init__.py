"""The client for browsers: in Node, in Chromium, its types, and its package."""
