"""What a member does next, alone and together with others that see everything late."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.consumer.membership import TRANSITIONS, Cause, Decision, Planned, State, View, after, decide, leads
from qdo.coordination import Member, Target, Versioned
from qdo.partitions import Partition, Queue
from tests.qdo.unit.grouping import DEEDS, Play
from tests.qdo.unit.test_assignment import downhill

QUEUE = Queue("host", "app", "orders")
ONE, TWO, THREE, FOUR = (Partition(QUEUE, number) for number in (1, 2, 3, 4))
SEEN = {QUEUE: 4}
A, B = Member("a", SEEN), Member("b", SEEN)
BOTH: Mapping[str, Member] = {"a": A, "b": B}
HALVES = Target({ONE: "a", TWO: "b", THREE: "a", FOUR: "b"})


def view(me: str, **changes: Any) -> View:  # noqa: ANN401 - any field
    """Returns the view of a member of a group of two that has come to rest, but for some changes."""
    rest = View(
        me=me,
        members=BOTH,
        target=Versioned(HALVES, 7),
        states={partition: "owned" for partition, owner in HALVES.owners.items() if owner == me},
        planned=None,
        now=1000.0,
        age=60.0,
        settle=0.05,
        grace=10.0,
    )
    return rest._replace(**changes)


def test_whoever_has_what_the_target_gives_it_rests() -> None:
    """Nothing is set, taken, revoked or waited for, by the leader as well."""
    assert decide(view("b")) == Decision()
    leader = decide(view("a"))
    assert leader == Decision(planned=Planned(BOTH, HALVES, None))
    assert decide(view("a", planned=leader.planned)) == leader


def test_what_the_target_gives_is_taken() -> None:
    """All of it that is not held, what is unsure as well."""
    assert decide(view("b", states={TWO: "owned"})).take == {FOUR}
    assert decide(view("b", states={TWO: "unsure"})).take == {TWO, FOUR}


def test_what_the_target_takes_away_is_revoked() -> None:
    """And nothing else: what stays is not touched."""
    decision = decide(view("b", states=dict.fromkeys([ONE, TWO, FOUR], "owned")))
    assert decision == Decision(give_up=frozenset([ONE]))


def test_a_revocation_is_carried_through() -> None:
    """What is being revoked is neither revoked again nor taken back before it is released."""
    for state in ("revoking", "releasing"):
        assert decide(view("b", states={FOUR: "owned", TWO: state})) == Decision()
        assert decide(view("b", states={TWO: "owned", FOUR: "owned", ONE: state})) == Decision()


def test_what_may_have_been_taken_is_released_when_it_is_not_to_be_had() -> None:
    """What is given up without a word when nobody works on it."""
    states = {TWO: "owned", FOUR: "owned", ONE: "unsure"}
    assert decide(view("b", states=states)) == Decision(give_up=frozenset([ONE]))


def test_without_a_target_nothing_is_given_up() -> None:
    """The leader sets one, the other waits for it."""
    none = Versioned(None, -1)
    assert decide(view("b", target=none)) == Decision()
    decision = decide(view("a", target=none))
    assert decision.target is not None
    assert set(decision.target.owners) == set(HALVES.owners)
    assert not decision.give_up


def test_only_the_leader_sets_the_target() -> None:
    """A third member is here: the first computes, the others keep to what there is."""
    members = {**BOTH, "c": Member("c", SEEN)}
    decision = decide(view("a", members=members))
    assert decision.target is not None
    assert sorted(decision.target.owners.values()) in (["a", "a", "b", "c"], ["a", "b", "b", "c"])
    assert decide(view("b", members=members)) == Decision()
    assert decide(view("b", members={"b": B})).target is not None


def test_nobody_leads_who_is_not_there() -> None:
    """Whoever does not see itself among the members has nothing to say about them."""
    assert not leads("a", {"b": B})
    assert not leads("a", {})
    assert decide(view("a", members={"b": B})).target is None


def test_a_leader_waits_for_more_changes_to_come() -> None:
    """It says for how long, and goes on taking and revoking meanwhile."""
    members = {**BOTH, "c": Member("c", SEEN)}
    early = decide(view("a", members=members, age=0.02, states=dict.fromkeys([ONE, TWO], "owned")))
    assert early.target is None
    assert early.wait == pytest.approx(0.03)
    assert early.give_up == {TWO}
    assert early.take == {THREE}
    assert decide(view("a", members=members, age=0.05)).target is not None


def test_a_leader_computes_once() -> None:
    """As long as members and target are those of the last time nothing is computed; one change is enough."""
    wrong = Planned(BOTH, HALVES, None)
    assert decide(view("a", planned=wrong)).planned is wrong
    other = {**BOTH, "c": Member("c", SEEN)}
    assert decide(view("a", members=other, planned=wrong)).planned is not wrong
    somebody_set = Versioned(Target({ONE: "b"}), 8)
    assert decide(view("a", target=somebody_set, planned=wrong)).planned is not wrong


def test_a_leader_looks_again_when_an_absent_member_is_given_up() -> None:
    """It knows when that is, and computes again then."""
    before = Target(HALVES.owners, static=frozenset("b"))
    away = decide(view("a", members={"a": A}, target=Versioned(before, 7)))
    assert away.target is not None
    assert away.target.absent == {"b": 1000.0}
    assert away.wait == 10.0
    set_by_now = Versioned(away.target, 8)
    later = view("a", members={"a": A}, target=set_by_now, planned=away.planned, now=1004.0)
    assert decide(later) == Decision(wait=6.0, planned=away.planned)
    over = decide(later._replace(now=1010.0))
    assert over.target is not None
    assert set(over.target.owners.values()) == {"a"}


@pytest.mark.parametrize("state", get_args(State))
def test_every_life_can_be_ended(state: State) -> None:
    """Whatever a member is doing, stop leads to the end, and there it stays."""
    assert after(after(state, "stop"), "left") == "left"
    assert all(after("left", cause) == "left" for cause in get_args(Cause))


def test_a_lost_session_is_followed_by_another() -> None:
    """Whoever had one joins again, and nobody else does."""
    leading_there = {state for (state, cause), then in TRANSITIONS.items() if cause == "lost" and then == "joining"}
    assert leading_there == {"active", "suspended"}
    assert after("leaving", "lost") == "leaving"
    assert after(after("joining", "joined"), "suspended") == "suspended"
    assert after("suspended", "connected") == "active"


QUEUES = [Queue("host", "app", name) for name in ("audits", "billing", "carts")]
happenings = st.lists(
    st.tuples(
        st.sampled_from([*DEEDS, "join", "look", "look", "act", "act", "act", "finish", "wait"]),
        st.sampled_from("abcde"),
        st.integers(0, 30),
    ),
    max_size=120,
)


@given(happenings)
def test_members_that_see_late_never_share_a_partition_and_agree_in_the_end(
    history: list[tuple[str, str, int]],
) -> None:
    """At no step two members own a partition; once nothing happens any more everybody has what is its own."""
    play_through(history)


@pytest.mark.parametrize("seed", range(30))
def test_long_histories_end_well(seed: int) -> None:
    """The same over hundreds of events, most of them of members that are there and look, act and finish."""
    chance = random.Random(seed)
    often = ["look"] * 8 + ["act"] * 10 + ["finish"] * 5 + ["wait"] * 3
    deeds = chance.choices([*DEEDS, *often], k=500)
    play_through([(deed, chance.choice("abcde"), chance.randrange(31)) for deed in deeds])


def play_through(history: list[tuple[str, str, int]]) -> None:
    """Plays a history, looks at every step for a partition with two owners, and waits for agreement."""
    play = Play(QUEUES)
    for deed, name, number in history:
        DEEDS[deed](play, name, number)
        for partition, holders in play.holders().items():
            assert len(holders) == 1
            assert play.owners[partition] == play.players[holders[0]].session
    assert play.settle()
    agreed(play)


def agreed(play: Play) -> None:
    """Checks that a group is at rest and as it should be."""
    if not play.members:
        assert play.owners == {}
        return
    target = play.right()
    assert play.targets[-1] == target
    assert target.absent == {}
    seen = {name: dict(member.queues) for name, member in play.members.items()}
    assert downhill(seen, target.owners) == []
    for name, player in play.players.items():
        assert player.held == {partition for partition, owner in target.owners.items() if owner == name}
        assert not player.revoking
        assert not player.unsure
    assert set(play.owners) == set(target.owners)


def test_a_newcomer_stops_only_what_it_gets() -> None:
    """In a group at rest, a join has exactly those partitions revoked that the newcomer is to have."""
    play = Play(QUEUES)
    for name in "ab":
        play.join(name, 7)
    assert play.settle()
    before = {name: set(player.held) for name, player in play.players.items()}
    play.join("e", 7)
    assert play.settle()
    agreed(play)
    assert all(play.players[name].held <= held for name, held in before.items())
    given_up = sum(len(held - play.players[name].held) for name, held in before.items())
    assert given_up == len(play.players["e"].held) > 0
