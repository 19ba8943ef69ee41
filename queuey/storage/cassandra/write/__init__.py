"""Writes messages: coalesced batches, posts with idempotency keys, named messages, bulk loads, and undo writes.

:mod:`.writer` makes ids and sends :mod:`.write_batches`; :mod:`.reserving_writer` makes ids before the caller decides
whether to send. :mod:`.post_keys` and :mod:`.name_steps` decide the steps of posts with a key and of names, and
:mod:`.row_changes` carries them out. :mod:`.undo_writes` removes what may have been written too late.
"""
