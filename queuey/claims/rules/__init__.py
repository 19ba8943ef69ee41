"""The claim log of a queue partition, the state computed from it, and the decisions on it. No input or output.

A claim gives a message to one caller for a while. Every change is an :class:`~.entries.ClaimEntry` of the partition's
log. A :class:`~.partition_state.State` is the result of all entries up to one. An :class:`~.entry_draft.EntryDraft`
builds the next entry. See ``docs/architecture-claims.md``.
"""
