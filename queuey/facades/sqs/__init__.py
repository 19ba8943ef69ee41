"""The facade of Amazon SQS for existing SQS clients: AWS JSON 1.0 and the Query protocol, with signed requests.

A request goes through :mod:`.signatures` (verification), :mod:`.protocols` (parsing, to a struct of :mod:`.requests`)
and :mod:`.views` (the action). :mod:`.attributes` and :mod:`.messages` translate attributes of queues and messages.
``docs/compat/sqs.md`` lists every action, attribute and difference.
"""
