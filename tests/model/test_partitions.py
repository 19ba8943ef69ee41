"""Tests of the partition that a message goes to."""

from __future__ import annotations

import math
import random
from collections import Counter
from hashlib import blake2b
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.messages.posts import StickyChoice
from queuey.model.partitions import MAX_PARTITIONS, MAX_RUNS, by_key, spread
from queuey.runtime.event_loop import Core

VECTORS = [
    ("", 1, 1, 77),
    ("a", 2, 3, 144),
    ("user-1", 1, 4, 169),
    ("\xe9", 2, 3, 144),
    ("\U0001f600", 1, 5, 161),
    ("a" * 256, 2, 6, 132),
    ("x\0y", 1, 6, 167),
    ("\udc80", 2, 7, 102),
]
COUNTS = st.integers(1, MAX_PARTITIONS)


@given(st.text(st.characters(codec="utf-8")), COUNTS)
def test_partition_follows_the_published_rule(key: str, count: int) -> None:
    """Other programs can compute the partition: BLAKE2b of 8 bytes, big-endian, modulo the count, from 1."""
    expected = int(blake2b(key.encode(), digest_size=8).hexdigest(), 16) % count + 1
    assert by_key(key, count) == expected


@pytest.mark.parametrize(("key", "of_two", "of_seven", "of_all"), VECTORS)
def test_fixed_vectors(key: str, of_two: int, of_seven: int, of_all: int) -> None:
    """These partitions hold for ever: stored messages depend on them."""
    assert (by_key(key, 2), by_key(key, 7), by_key(key, 200)) == (of_two, of_seven, of_all)


def evenly(counts: Counter[int], partitions: int) -> bool:
    """Returns whether a chi-square test passes (six standard deviations)."""
    mean = counts.total() / partitions
    chi = sum((counts[number] - mean) ** 2 / mean for number in range(1, partitions + 1))
    return chi < partitions - 1 + 6 * math.sqrt(2 * (partitions - 1))


@pytest.mark.parametrize("count", [2, 3, 7, 16, 200])
def test_keys_spread_evenly(count: int) -> None:
    """Keys that count up fill all partitions evenly."""
    assert evenly(Counter(by_key(f"user-{n}", count) for n in range(200 * count)), count)


def make_seeded_core(seed: int) -> Core:
    core = Core()
    core.rng = random.Random(seed)
    return core


@given(COUNTS, st.integers())
def test_sticky_choice_is_in_range(count: int, seed: int) -> None:
    """A choice is one of the queue's partitions, also when the count changes while it is held."""
    choice = StickyChoice(make_seeded_core(seed), hold=60.0)
    assert 1 <= choice.choose(count) <= count
    assert 1 <= choice.choose(max(count // 2, 1)) <= max(count // 2, 1)
    assert 1 <= choice.choose(count * 2) <= count * 2


@pytest.mark.parametrize("count", [2, 5, 200])
def test_sticky_choice_is_uniform_over_holds(count: int) -> None:
    """Over many holds every partition is chosen equally often."""
    choice = StickyChoice(make_seeded_core(4), hold=0.0)
    assert evenly(Counter(choice.choose(count) for _ in range(200 * count)), count)


@given(count=st.integers(1, 1000), partitions=st.integers(1, 200), first=st.data())
def test_batches_are_spread_in_runs(count: int, partitions: int, first: st.DataObject) -> None:
    """A batch goes in order to a few consecutive partitions, in equal shares, or to all if there are few."""
    start = first.draw(st.integers(1, partitions))
    chosen = spread(count, start, partitions)
    sizes = [len(list(group)) for _, group in groupby(chosen)]
    assert chosen[0] == start
    assert len(sizes) == len(set(chosen)) == min(MAX_RUNS, partitions, count)
    assert max(sizes) - min(sizes) <= 1
    assert set(chosen) <= set(range(1, partitions + 1))
