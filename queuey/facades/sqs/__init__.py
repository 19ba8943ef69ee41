"""The facade of Amazon SQS, for every client of it: AWS JSON 1.0 and the Query protocol, signed requests.

A request goes through :mod:`.signatures` (who signed it), :mod:`.protocols` (what it asks for, as one of
:mod:`.requests`) and :mod:`.views` (the action). What a queue has of SQS and not of ours is in :mod:`.attributes`, what
a message has in :mod:`.messages`. ``docs/compat/sqs.md`` has every action, attribute and difference.
"""
