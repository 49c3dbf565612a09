"""Options and sizes: the argument wins, then the environment, then the default; nonsense is an error with the list."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exla.errors import Holder, MemoryLimitError, OptionError
from exla.options import CHOICES, Options
from exla.units import UNITS, format_bytes, parse_size

SIZES = {
    "512MiB": 512 << 20,
    "2GB": 2 * 10**9,
    "1.5 GiB": 3 << 29,
    "100kB": 100_000,
    "100KB": 100_000,
    "1gib": 1 << 30,
    "4096": 4096,
    "7B": 7,
    ".5KiB": 512,
    "0.0000001GB": 100,
}
BAD_SIZES = [
    "",
    "MiB",
    "12 parsecs",
    "-1GB",
    "0",
    "0.1B",
    "nan",
    "inf",
    "1e9",
    "1,000",
    "1 2MB",
    "0x10",
    True,
    None,
    1.5,
    -3,
    0,
    np.float32(4096),
    np.bool_(True),
    np.int64(-3),
    np.array([4096, 4096]),
    jnp.ones(()),
]


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes_are_read_in_powers_of_1000_and_1024(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("value", BAD_SIZES)
def test_what_is_not_a_size_is_refused(value):
    with pytest.raises(OptionError):
        parse_size(value)


def test_whole_bytes_in_floating_point_are_named_as_they_should_be_written():
    with pytest.raises(OptionError, match=r"not 64000000.0: int\(64000000.0\)\?"):
        parse_size(64e6)


@pytest.mark.parametrize("value", [np.int64(8 << 40), np.uint8(200), np.array(4096), jnp.int32(4096)], ids=repr)
def test_whole_numbers_of_numpy_and_jax_are_bytes_too(value):
    assert parse_size(value) == int(value)
    assert type(parse_size(value)) is int


def test_an_unknown_unit_is_answered_with_the_valid_ones():
    with pytest.raises(OptionError, match=", ".join(UNITS)):
        parse_size("3 MiBs", "memory_limit")


@given(st.integers(1, 1 << 60))
def test_whole_bytes_survive_reading_in_both_forms(count):
    assert parse_size(count) == parse_size(str(count)) == parse_size(f"{count}B") == count


@given(st.integers(0, 1 << 50))
def test_written_sizes_always_have_a_unit(count):
    assert format_bytes(count).split()[-1] in UNITS


def test_the_argument_wins_over_the_environment_over_the_default(monkeypatch):
    assert Options.resolve().memory_limit is None
    monkeypatch.setenv("EXLA_MEMORY_LIMIT", "1MiB")
    monkeypatch.setenv("EXLA_SEARCH", "off")
    assert Options.resolve() == Options(memory_limit=1 << 20, search="off")
    assert Options.resolve(memory_limit="2MiB", search="analytic") == Options(memory_limit=2 << 20)


@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_value_is_answered_with_the_valid_ones(name, monkeypatch):
    with pytest.raises(OptionError, match=CHOICES[name][0]):
        Options.resolve(**{name: "nonsense"})
    monkeypatch.setenv(f"EXLA_{name.upper()}", "nonsense")
    with pytest.raises(OptionError, match=f"EXLA_{name.upper()}"):
        Options.resolve()


def test_a_target_that_nobody_knows_is_answered_with_those_there_are():
    assert Options.resolve(target="tpu:v5e").target == "tpu:v5e"
    with pytest.raises(OptionError, match="did you mean 'gpu:h200'.*"):
        Options.resolve(target="gpu:h20")
    with pytest.raises(OptionError, match="'tpu:v6e'"):
        Options.resolve(target="quantum")


def test_an_unknown_option_name_gets_a_suggestion():
    with pytest.raises(OptionError, match="memory_limit"):
        Options.resolve(memory_limits=3)


def test_the_refusal_has_the_numbers_the_lines_and_the_next_step():
    holder = Holder(name="f32[9] from `exp`", bytes=36, source="a.py:3 (f)", blocked="`svd` has no factor rule")
    error = MemoryLimitError(limit_bytes=1000, smallest_peak_bytes=2000, holders=(holder,))
    for part in ("1000", "2000", "a.py:3", "svd", "exp", "Raise memory_limit (above 2000 bytes"):
        assert part in str(error)
    assert isinstance(error, MemoryError)
    assert "36 bytes: f32[9]" in str(error) and "alone" not in str(error)
    far = MemoryLimitError(limit_bytes=1000, smallest_peak_bytes=9000, holders=(holder,))
    assert "half of that may do" in str(far) and "half of that" not in str(error)
    error = MemoryLimitError(limit_bytes=1000, smallest_peak_bytes=2000, holders=(holder,), fixed_bytes=1500)
    assert "Arguments and results alone take 1.5 KiB (1500 bytes)" in str(pickle.loads(pickle.dumps(error)))


def test_a_folder_of_records_has_a_variable_of_its_own(monkeypatch):
    monkeypatch.setenv("EXLA_RECORDS", "/somewhere/else")
    with pytest.raises(OptionError, match="EXLA_RECORDS_DIR"):
        Options.resolve()


def test_a_misspelt_variable_is_an_error_that_names_the_nearest(monkeypatch):
    monkeypatch.setenv("EXLA_MEMORYLIMIT", "4MiB")
    with pytest.raises(OptionError, match="EXLA_MEMORYLIMIT.*did you mean EXLA_MEMORY_LIMIT"):
        Options.resolve()
