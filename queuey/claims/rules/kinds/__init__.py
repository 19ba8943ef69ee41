"""What a log decides for each kind of queue: a file for each. What a kind *is* stands in ``queuey.model.kinds``."""

from __future__ import annotations

from queuey.claims.rules.kinds.dedup import DedupRules
from queuey.claims.rules.kinds.limited import LimitedRules
from queuey.claims.rules.kinds.ordered import OrderedRules
from queuey.claims.rules.kinds.plain import PlainRules
from queuey.model.messages import Queue

RULES = {"plain": PlainRules, "limited": LimitedRules, "dedup": DedupRules, "ordered": OrderedRules}


def rules_of(queue: Queue) -> type[PlainRules]:
    rules = RULES[queue.traits.name]
    return LimitedRules if rules is PlainRules and queue.max_claimed else rules
