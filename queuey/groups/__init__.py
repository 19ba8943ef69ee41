"""What is decided on consumer groups: pure functions of a group's state, of clocks and of the rows of offsets.

The service divides the partitions of queues among the members of a group, and refuses late commits; members read,
handle, and decide what to commit. ``docs/architecture-groups.md`` has the rules, O1 to O9, that the modules name.
"""
