"""Schedules: messages that are posted at scheduled times.

:mod:`.timetables` computes instants and :mod:`.schedule_states` the changes of a schedule's record, both without input
or output. :mod:`.schedules` has the use cases and posts what is due. :mod:`.views` has the operations of the API.
"""
