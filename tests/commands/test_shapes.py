"""`--shapes`: what is read, and what is said where it cannot be."""

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exla.commands.shapes import DTYPES, UsageError, read_shapes, short_name


def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


F3 = array("float32", 3)
GOOD = {
    "": ((), {}),
    "  ": ((), {}),
    "f32[20000,16] f32[20000,16]": ((array("float32", 20000, 16),) * 2, {}),
    "f32[3],f32[3]": ((F3, F3), {}),
    "f32[3] , f32[ 3 , ]\tf32[3],": ((F3, F3, F3), {}),
    "f32[20_000]": ((array("float32", 20000),), {}),
    "f32[]": ((array("float32"),), {}),
    "float32[3]": ((F3,), {}),
    "bf16[2] bool[2] i4[2] u8[0] c64[2] f8_e4m3fn[2]": (
        (
            *(array("bfloat16", 2), array("bool", 2), array("int4", 2), array("uint8", 0), array("complex64", 2)),
            array("float8_e4m3fn", 2),
        ),
        {},
    ),
    "(f32[3], {w: f32[3], 'a b': [1, f32[3]], 7: None})": (((F3, {"w": F3, "a b": [1, F3], 7: None}),), {}),
    "()": (((),), {}),
    "(f32[3])": ((F3,), {}),
    "(f32[3],)": (((F3,),), {}),
    "[f32[3]] {} []": (([F3], {}, []), {}),
    "f32[3] causal=True scale = .5 name='it\\'s' how=\"x\"": (
        (F3,),
        {"causal": True, "scale": 0.5, "name": "it's", "how": "x"},
    ),
    "1 -2 +3 1.5e-3 1_000 2j -inf": ((1, -2, 3, 0.0015, 1000, 2j, -math.inf), {}),
    "False None": ((False, None), {}),
    "f32=f32[3]": ((), {"f32": F3}),
}


@pytest.mark.parametrize("text", GOOD)
def test_good_shapes_are_read(text):
    found = read_shapes(text)
    assert (found.positional, found.keywords) == GOOD[text]
    assert list(map(type, found.positional)) == list(map(type, GOOD[text][0]))  # 1 is not True


BAD = {
    "f32": (4, "'[' after f32"),
    "f32[3": (6, "',' or ']'"),
    "f32[3,x]": (7, "a size"),
    "f32[-1]": (5, "a size"),
    "f32[3.5]": (6, "',' or ']'"),
    "f33[3]": (1, "did you mean f32?"),
    "float[3]": (1, "a dtype in place of 'float'"),
    "hello": (1, "text is quoted"),
    "f32[3]f32[3]": (7, "a space or a comma"),
    "f32[3],,f32[3]": (8, "an array such as"),
    "(f32[3] f32[3])": (9, "',' or ')'"),
    "(f32[3]": (8, "',' or ')'"),
    "f32[3])": (7, "a space or a comma"),
    "{w f32[3]}": (4, "':' after the key"),
    "{(1): f32[3]}": (2, "a key"),
    "x=f32[3] f32[3]": (10, "come before those by name"),
    "x=1 x=2": (5, "x is given twice"),
    "x=": (3, "an array such as"),
    "'open": (1, "an array such as"),
    "007": (1, "as Python writes it"),
    "1x": (1, "an array such as"),
    "__import__('os')": (1, "a dtype in place of '__import__'"),
    "f32[3] f64[3]": (8, "--x64"),
    "i64[3]": (1, "--x64"),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_shapes_are_told_with_position_and_what_was_expected(text):
    position, expected = BAD[text]
    with pytest.raises(UsageError) as error:
        read_shapes(text)
    message, shown, mark = str(error.value).split("\n")
    assert f"at position {position}" in message and expected in message, message
    assert shown == f"  {text}" and mark.index("^") == position + 1


def test_brackets_without_end_are_told():
    with pytest.raises(UsageError, match="nested too deeply"):
        read_shapes("(" * 100_000)


def test_sixty_four_bits_are_read_where_jax_has_them(x64):
    assert read_shapes("f64[3] i64[]").positional == (array("float64", 3), array("int64"))


@pytest.mark.parametrize("kind", ["fry", "rbg", "urbg"])
def test_keys_are_written_as_jax_prints_them(kind):
    (key,) = read_shapes(f"key<{kind}>[2]").positional
    assert jax.core.ShapedArray(key.shape, key.dtype).str_short(short_dtypes=True) == f"key<{kind}>[2]"
    jax.eval_shape(jax.vmap(jax.random.normal), key)


@pytest.mark.parametrize("dtype", sorted(set(DTYPES.values())))
def test_short_names_are_those_that_jax_prints(dtype):
    printed = jax.core.ShapedArray((), jnp.dtype(dtype)).str_short(short_dtypes=True)
    assert printed == f"{short_name(dtype)}[]" and DTYPES[short_name(dtype)] == dtype


WORDS = st.text("abw_ ,:=()[]{}'0123456789.-ejf32", max_size=30)


@settings(deadline=None)
@given(WORDS)
def test_any_text_is_read_or_told(text):
    try:
        read_shapes(text)
    except UsageError as error:
        assert "expected" in str(error)


LEAVES = st.one_of(
    st.builds(
        lambda shape: jax.ShapeDtypeStruct(tuple(shape), jnp.dtype("float32")), st.lists(st.integers(0, 99), max_size=3)
    ),
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=6,
)


def written(tree):
    match tree:
        case jax.ShapeDtypeStruct():
            return jax.core.ShapedArray(tree.shape, tree.dtype).str_short(short_dtypes=True)
        case tuple():
            return "(" + "".join(f"{written(t)}, " for t in tree) + ")"
        case list():
            return "[" + ", ".join(map(written, tree)) + "]"
        case dict():
            return "{" + ", ".join(f"{k!r}: {written(v)}" for k, v in tree.items()) + "}"
    return repr(tree)


@settings(deadline=None)
@given(st.lists(TREES, max_size=3))
def test_what_is_written_is_read_back(trees):
    assert read_shapes(" ".join(map(written, trees))).positional == tuple(trees)
