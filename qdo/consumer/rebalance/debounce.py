"""How long the leader of a group lets changes of its members gather before it answers them."""

from __future__ import annotations

from math import inf


class RebalanceDebounce:
    """Counts the time for which members have been changing, up to the time for settling, when they are answered.

    In a group at work the first change for a while is answered at once, for it mostly is the only one; those that
    follow within the time for settling gather until that is over. A group without a target gathers from the first
    member on, because its members are often started together.

    Args:
        seconds: The time for settling.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answered: object = None
        self._answered_at = -inf
        self._changing_since: float | None = None

    def age(self, seen: object, now: float, *, at_work: bool) -> float:
        """Returns the time; what is left of the time for settling is to be waited, and then it is asked again.

        Args:
            seen: The members and queues that are there now; compared with what was there.
            now: The present instant, of any monotonic clock.
            at_work: The group has a target.
        """
        if seen == self._answered:
            self._changing_since = None
            return self._seconds
        if self._changing_since is None:
            self._changing_since = now
        due = (self._answered_at if at_work else self._changing_since) + self._seconds
        if now < due:
            return self._seconds - (due - now)
        self._answered, self._answered_at, self._changing_since = seen, now, None
        return self._seconds
