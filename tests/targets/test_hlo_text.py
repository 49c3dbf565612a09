"""How often collectives run, read off optimised HLO: as often as the loops around them turn, where that can be read."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from exla.call import read
from exla.search.barred import exchanges_more
from exla.targets.hlo_text import Collectives, collectives

SUM = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}
"""


def body(name, *lines):
    inside = "\n".join(f"  {line}" for line in lines)
    return f"""
%{name} (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[], f32[8]{{0}}) parameter(0)
{inside}
  ROOT %t = (s32[], f32[8]{{0}}) tuple(%i, %x)
}}
"""


def condition(name, below="%limit"):
    return f"""
%{name} (q: (s32[], f32[8])) -> pred[] {{
  %q = (s32[], f32[8]{{0}}) parameter(0)
  %limit = s32[]{{:T(128)}} constant(6)
  %moving = s32[] get-tuple-element(%q), index=1
  %counter = s32[]{{:T(128)}} get-tuple-element(%q), index=0
  ROOT %lt = pred[]{{:T(512)}} compare(%counter, {below}), direction=LT, metadata={{op_name="lt"}}
}}
"""


REDUCE = "%r = f32[8]{0} all-reduce(%x), channel_id=1, to_apply=%sum"
STARTED = "%r = (f32[8]{0}, f32[8]{0}) collective-permute-start(%x), channel_id=1"
DONE = "%d = f32[8]{0} collective-permute-done(%r)"
TUPLE = "%begin = (s32[], f32[8]{0}) tuple(%copy.1, /*index=1*/%x)"
COPIED = "%copy.1 = s32[]{:T(128)} copy(%first)"
FIRST = "%first = s32[]{:T(128)} constant(2)"


def loop(inside, name="w", around="c", trips=None):
    known = f', backend_config={{"known_init_step":{{"init":"0"}},"known_trip_count":{{"n":"{trips}"}}}}' * bool(trips)
    return f"%{name} = (s32[], f32[8]{{0}}) while(%begin), condition=%{around}, body=%{inside}{known}"


def entry(*lines):
    return body("main", *lines).replace("\n%main", "\nENTRY %main")


CASES = {
    "none": (entry(), Collectives(total=0, in_loops=0)),
    "in no loop": (entry(REDUCE), Collectives(total=1, in_loops=0)),
    "begun and ended": (entry(STARTED, DONE), Collectives(total=1, in_loops=0)),
    "in a loop of 4": (
        body("b", REDUCE) + condition("c") + entry(loop("b", trips=4), REDUCE),
        Collectives(total=5, in_loops=4),
    ),
    "in a loop of 4 in one of 8": (
        body("b", REDUCE) + body("d", loop("b", trips=4)) + condition("c") + entry(loop("d", trips=8)),
        Collectives(total=32, in_loops=32),
    ),
    "counted from 2 to 6, without the compiler's word": (
        body("b", REDUCE) + condition("c") + entry(FIRST, COPIED, TUPLE, loop("b")),
        Collectives(total=4, in_loops=4),
    ),
    "counted from who knows where to 6": (
        body("b", REDUCE) + condition("c") + entry(loop("b")),
        Collectives(total=6, in_loops=6),
    ),
    "until something moves": (
        body("b", REDUCE) + condition("c", "%moving") + entry(FIRST, COPIED, TUPLE, loop("b")),
        Collectives(total=1, in_loops=1, untold=(1,)),
    ),
    "twice, and 3 times as often, until something moves": (
        body("b", REDUCE)
        + body("d", loop("b", trips=3), REDUCE, loop("b", name="again", around="e"))
        + condition("e", "%moving")
        + condition("c")
        + entry(loop("d", around="e"), REDUCE),
        Collectives(total=6, in_loops=5, untold=(5, 1)),
    ),
    "in a branch and in a call": (
        body("b", REDUCE)
        + entry(
            "%a = f32[] conditional(%p, %x, %x), true_computation=%b, false_computation=%b",
            "%k = f32[] conditional(%p, %x, %x), branch_computations={%b, %b}",
            "%s = ((f32[8]), f32[8]) async-start(%x), calls=%b",
            "%e = f32[8]{0} async-done(%s), calls=%b",
        ),
        Collectives(total=5, in_loops=0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_collectives_count_as_often_as_they_run(case):
    text, expected = CASES[case]
    assert collectives(SUM + text) == expected


COUNTS = [
    Collectives(total=4, in_loops=4),
    Collectives(total=5, in_loops=4),
    Collectives(total=5, in_loops=5),
    Collectives(total=5, in_loops=5, untold=(1,)),
    Collectives(total=5, in_loops=5, untold=(2,)),
    Collectives(total=5, in_loops=5, untold=(2, 1)),
]


@pytest.mark.parametrize("more", range(1, len(COUNTS)))
def test_more_is_more_of_any_kind(more):
    for less in COUNTS[:more]:
        assert COUNTS[more].exceed(less) and not less.exceed(COUNTS[more])
    assert not COUNTS[more].exceed(COUNTS[more])


def around(x, until):
    def turn(x, _):
        x = jax.lax.scan(lambda x, _: (jax.lax.ppermute(x, "i", [(0, 0)]), None), x, None, length=5)[0]
        return x + jax.lax.psum(jnp.sin(x), "i"), None

    x = jax.lax.scan(turn, x, None, length=3)[0] + jax.lax.pmax(x, "i")
    return jax.lax.while_loop(lambda x: x[0] < 3, lambda x: x + jax.lax.pmin(x, "i"), x) if until else x


@pytest.mark.parametrize("until", [False, True])
def test_where_the_plain_program_does_not_compile_its_own_loops_say_what_may_be_exchanged_there(until):
    mesh = Mesh(jax.devices()[:1], ("i",))
    mapped = jax.shard_map(lambda x: around(x, until), mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    program = read(jax.make_jaxpr(mapped)(jnp.ones(4)))
    own = Collectives(total=20, in_loops=3 * (5 + 1) + until, untold=(1,) * until)
    assert not exchanges_more(own, None, program)
    turning = Collectives(total=20, in_loops=20, untold=own.untold)
    assert f"exchange data 20 times, 20 of them in loops{', 1 on' * until}" in exchanges_more(turning, None, program)
    assert exchanges_more(Collectives(total=1, in_loops=1, untold=(1, 1)), None, program)
    assert not exchanges_more(own, own, program)
    assert f"as jax.jit compiles it, {own}" in exchanges_more(turning, own, program)
