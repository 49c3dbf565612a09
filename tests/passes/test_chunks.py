"""Chunk sizes: always legal, near what was asked for, and wasting little."""

from hypothesis import given
from hypothesis import strategies as st

from exla.passes.split.chunks import at_least, largest_chunk, sizes, tidy


@given(size=st.integers(2, 500_000), wanted=st.integers(1, 600_000), least=st.integers(1, 100))
def test_a_tidied_chunk_is_legal_and_not_far_below_what_was_wanted(size, wanted, least):
    least = min(least, size - 1)
    chunk = tidy(size, wanted, least)
    assert least <= chunk < size
    assert chunk <= max(min(wanted, largest_chunk(size)), least), "more than half of a factor leaves two chunks as well"
    assert 2 * chunk >= min(wanted, largest_chunk(size)) or chunk >= least


def test_divisors_and_full_vectors_are_preferred():
    assert tidy(20_000, 130) == 125 and tidy(20_000, 60) == 40
    assert tidy(20_000, 10_000) == 10_000
    assert tidy(1000, 7) == 5
    assert tidy(10_007, 1000) % 8 == 0
    assert -(-10_007 // tidy(10_007, 1000)) == -(-10_007 // 1000)


@given(
    size=st.integers(2, 100_000),
    least=st.integers(1, 20),
    slope=st.floats(0, 1e6),
    fixed=st.floats(0, 1e8),
    room=st.floats(0, 1e9),
    working=st.lists(st.integers(1, 1 << 30), max_size=5),
)
def test_no_proposed_chunk_is_predicted_to_break_the_cap(size, least, slope, fixed, room, working):
    proposed = list(sizes(size, min(least, size - 1), slope, fixed, room, working))
    assert len(set(proposed)) == len(proposed) <= len(working) + 1
    for chunk in proposed:
        assert min(least, size - 1) <= chunk < size
        assert fixed + chunk * slope <= room


def test_the_cap_is_a_bound_and_the_cache_a_goal():
    proposed = list(sizes(20_000, 1, 1000.0, 0.0, 10e6, [100_000, 1_000_000]))
    assert proposed == [100, 1000, 10_000]


def test_the_next_chunk_is_a_divisor_or_fills_vectors():
    assert at_least(7000, 110) == 125 and at_least(7000, 125) == 125
    assert at_least(960, 15) == 16 and at_least(10_007, 157) == 160
    assert at_least(1000, 7) == 8
