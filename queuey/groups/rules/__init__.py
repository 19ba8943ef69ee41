"""Decisions about consumer groups: pure functions of a group's state, of clocks and of offset rows.

The service divides the partitions of queues among the members of a group, and refuses late commits. Members read and
handle messages, and decide what to commit. Modules cite the rules O1 to O8 of ``docs/architecture-groups.md``.
"""
