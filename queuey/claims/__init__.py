"""The log of claims of a queue partition, the state that follows from it, and the decisions on it. No input or output.

A claim gives a message to one caller for a while. Every change is an :class:`~.entries.Entry` of the partition's log. A
:class:`~.state.State` follows from all entries up to one; an :class:`~.drafts.EntryDraft` builds the next entry. See
``docs/architecture-claims.md``.
"""
