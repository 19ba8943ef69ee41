"""Moves all messages of a queue to another one.

:mod:`.move_records` are the stored records of moves. :mod:`.moves` starts and ends moves, and has any process continue
one. :mod:`.active_move` is a move at work, partition by partition. :mod:`.views` has the operations of the API.
"""
