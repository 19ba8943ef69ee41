"""Claims: a message is delivered to one caller until it is acknowledged or released, or its claim expires.

The room, from the ground up: ``rules`` decides on a partition's claim log, without input or output. ``log`` has the
logs of this process: it reads messages, appends entries, and does what follows from them. On it stand :mod:`.claims`
(claim, acknowledge, renew, release), :mod:`.jobs` (single jobs), :mod:`.overview` (counts and lists) and
:mod:`.expiry_records` (expired messages become dead letters). :mod:`.views` has the operations of the API.
"""
