"""The HTTP/1.1 server below the gateway: one task per connection, heads parsed by llhttp, the rest framed here.

:mod:`.heads` reads heads, :mod:`.connection` is one connection, :mod:`.listening` has all connections of one process,
:mod:`.processes` has the processes of a service.
"""

from queuey.model.extras import require

require("server", "The service", ImportError)
