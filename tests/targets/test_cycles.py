"""The TPU compiler's estimate, summed over a schedule."""

import re

import jax
import jax.numpy as jnp
import pytest

import exla
from exla.call import read
from exla.ir.scopes import FALLS_BACK
from exla.search.cost import predict_s
from exla.search.rewriting import rewrite
from exla.targets.base import TARGETS, compile_for
from exla.targets.cycles import estimated_cycles
from tests.targets.installed import compiler_of

LOOP = """HloModule m
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %neg.1 = f32[8]{0} negate(%p), backend_config={"window_config":{"estimated_cycles":"999"}}
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%t), index=1
  %f.1 = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"10"}}
  %f.2 = f32[8]{0} fusion(%f.1), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"5"}}
  ROOT %r = (s32[], f32[8]) tuple(%x, %f.2)
}

%condition (t.1: (s32[], f32[8])) -> pred[] {
  %t.1 = (s32[], f32[8]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t.1), index=0
  %c = s32[]{:T(128)} constant(100)
  ROOT %lt = pred[] compare(%i, %c), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %first = f32[8]{0} fusion(%a), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"7"}}
  %while.1 = (s32[], f32[8]) while(%first), condition=%condition, body=%body
  ROOT %out = f32[8]{0} get-tuple-element(%while.1), index=1
}
"""


def test_what_runs_in_a_loop_counts_once_a_trip_and_what_is_fused_only_as_the_fusion():
    found = estimated_cycles(LOOP)
    assert found is not None and found.total == 7 + 100 * 15 and found.unknown_trips == 0


def test_a_loop_of_unknown_length_is_counted_once_and_said():
    found = estimated_cycles(LOOP.replace("constant(100)", "parameter(1)"))
    assert found is not None and found.total == 7 + 15 and found.unknown_trips == 1


def test_a_conditional_takes_its_longest_branch():
    text = LOOP.replace(
        "while(%first), condition=%condition, body=%body",
        "conditional(%first), branch_computations={%body, %condition}",
    )
    assert estimated_cycles(text).total == 7 + 15


def test_what_exla_falls_back_on_does_not_count():
    text = LOOP.replace(
        "while(%first), condition=%condition, body=%body",
        "conditional(%first), branch_computations={%body, %usual}",
    )
    usual = text[text.index("%body (") : text.index("%condition (")].replace("%body", "%usual")
    usual = usual.replace('"10"', '"1"').replace('"5"', '"1"')
    text = text.replace("ENTRY", usual + "ENTRY")
    assert estimated_cycles(text).total == 7 + 15
    scoped = text.replace("kind=kLoop", f'kind=kLoop, metadata={{op_name="jit(f)/{FALLS_BACK}/add"}}', 1)
    assert estimated_cycles(scoped).total == 7 + 2


def test_the_compiler_keeps_the_scope_of_what_exla_falls_back_on():
    compiler_of("tpu:v5e")

    def kernel_product(x, y, v):
        return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ v

    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((20_000, 16), (20_000, 16), (20_000,))]
    compiled = exla.compile(kernel_product, structs, target="tpu:v5e", memory_limit="24MiB", records="off")
    text = compiled.as_text()
    usual, longest = estimated_cycles(text), estimated_cycles(text.replace(FALLS_BACK, "scope"))
    assert usual.is_whole and longest.is_whole and usual.total < longest.total / 2


@pytest.mark.parametrize(
    "instruction",
    [
        "fusion(%a), kind=kCustom, calls=%fused",
        "sort(%a), dimensions={0}, to_apply=%fused",
        "reduce-window(%a, %z), window={size=3}, to_apply=%fused",
        'custom-call(%a), custom_call_target="TopK"',
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a loop"])
def test_work_that_is_not_estimated_is_said(instruction, inside):
    before = "  ROOT %r = " if inside else "  %while.1 = "
    text = LOOP.replace(before, f"  %g = f32[8]{{0}} {instruction}\n{before}")
    found = estimated_cycles(text)
    assert found.total == 7 + 100 * 15 and found.unestimated == 1 and not found.is_whole


def test_buffers_and_scalars_are_no_work():
    free = '  %b = f32[8]{0} custom-call(), custom_call_target="AllocateBuffer"\n  %s = s32[] add(%i, %i)\n'
    found = estimated_cycles(LOOP.replace("  %while.1 = ", f"{free}  %while.1 = "))
    assert found.unestimated == 0 and found.is_whole


def test_text_without_estimates_has_none():
    assert estimated_cycles("HloModule m\n\nENTRY %main (a: f32[]) -> f32[] {\n}") is None
    assert estimated_cycles("") is None


def smooth(x, y, v):
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)) @ v


def points(n):
    return [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((n, 3), (n, 3), (n,))]


@pytest.mark.parametrize(("name", "least", "most"), [("tpu:v6e", 5, 10), ("tpu:v5p", 5, 15), ("tpu:v5e", 1, 1.5)])
def test_a_reduction_that_accumulates_too_much_is_slow_by_estimate_and_by_prediction(name, least, most):
    target = TARGETS.get(compiler_of(name))
    rows = (1000, 1400) if name == "tpu:v5p" else (2304, 2600)

    def farthest(x, y):
        return jnp.max(jnp.abs(x[:, None] - y[None]), axis=-1)

    estimated, predicted = [], []
    for count in rows:
        structs = [jax.ShapeDtypeStruct((n, 3), jnp.float32) for n in (count, 2560)]
        compiled = compile_for(target, farthest, structs, compiler_options={})
        estimated.append(estimated_cycles(compiled.as_text()).total)
        predicted.append(predict_s(read(jax.make_jaxpr(farthest)(*structs), "tpu"), target.machine()))
    assert least < estimated[1] / estimated[0] < most
    assert predicted[1] / predicted[0] > min(least, 3)


def test_a_rewrite_whose_usual_way_is_faster_is_chosen():
    name = compiler_of("tpu:v6e")
    compiled = exla.compile(smooth, points(12_000), target=name, memory_limit="14MiB", records="off")
    assert any("replace" in str(d) for d in compiled.plan.decisions)
    assert estimated_cycles(compiled.as_text()).total < 2.8e6  # 4.4 million without the rewrite


def test_orders_of_products_beside_a_big_reduction_are_weighed_as_in_chunks_too():
    def both(x, a, b, v):
        return jnp.sum(jnp.max(jnp.abs(x[:, None] - x[None]), axis=-1), axis=1), (a @ b) @ v

    shapes = ((20_000, 3), (4000, 4000), (4000, 4000), (4000,))
    program = read(jax.make_jaxpr(both)(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)), "tpu")
    decisions = rewrite(program, TARGETS.get("tpu:v6e").machine(), exact=False, room_bytes=64 << 20).decisions
    assert any("reorder" in str(d) for d in decisions)


def test_the_loops_of_the_real_compiler_are_understood():
    name = compiler_of("tpu:v5e")
    compiled = exla.compile(smooth, points(6000), target=name, memory_limit="4MiB")
    found = estimated_cycles(compiled.as_text())
    assert " while(" in compiled.as_text() and found is not None and found.unknown_trips == 0
    once = sum(int(n) for n in re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text()))
    assert found.total > 3 * once / 2  # what is in the loop runs several times
    assert found.is_whole
    nearest = exla.compile(lambda x: jax.lax.top_k(x, 3)[0], points(6000)[:1], target=name)
    assert estimated_cycles(nearest.as_text()).unestimated
