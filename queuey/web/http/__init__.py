"""The HTTP/1.1 server below the gateway: one task a connection, heads parsed by llhttp, everything else framed here.

:mod:`.heads` reads heads, :mod:`.connection` is one connection from its first byte to its last, :mod:`.listening` has
all of one process, :mod:`.processes` has the processes of a service.
"""
