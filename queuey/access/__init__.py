"""Callers and their rights: credentials, what each may do, and the queue as a caller may use it.

``credentials`` reads who calls, :mod:`.authorization` checks what the caller may do, and :mod:`.queue_access` carries
the check along with the queue's row, so that a use case can repeat it for a newer row. :mod:`.issued_credentials` has
keys that callers make for others, and browser sessions. :mod:`.operations` declares what the views of all rooms serve.
"""
