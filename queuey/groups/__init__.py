"""Consumer groups: their offsets, their members, who gets which partitions, and in which data centre.

``rules`` decides, and :mod:`.assignment` divides partitions among members; neither has input or output. :mod:`.groups`
has the use cases. It keeps a :class:`~.local_group.LocalGroup` for each group that this process serves: members'
heartbeats, the group's state (:mod:`.state_cache`, :mod:`.state_changes`), the search for its queues, and hand-overs of
partitions. :mod:`.offsets` records how far each group has read. Views: :mod:`.member_views` and :mod:`.offset_views`.
"""
