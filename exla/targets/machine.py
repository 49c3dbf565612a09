"""What a planner has to know of a device: how fast it is at what, what its compiler fuses, which chunks suit it.

The numbers only rank candidates; what is believed is the compiler's count of bytes and a clock. Those of the CPU are
for two cores: read off micro-benchmarks, then moved to where they rank the candidates of profiling campaigns best
(`benchmarks/campaigns`). Those of an accelerator come from its data sheet (`Machine.of`): the
peak rates of the sheet times what real programs reach of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from exla.targets.facts import Facts

REACHED = 0.5
"""Share of a data sheet's peak that programs reach: Nvidia's and Google's own guides call half of it good."""
SHORTENED = 0.53
"""Share of what a GPU's last cache hands out that reductions along a short axis reach, whose rows do not stay nearer.
An H100 took 1.9 and 9.1 ms for a kernel product of 20,000 points in 3 and 16 dimensions, 2.9 TB/s of 5.5."""
TRIP_S = 1e-5
"""Seconds that a trip of a loop takes on a GPU, whose host decides whether there is another one."""
CROWDED = 0.2
"""How much longer a program takes for each doubling of temporaries that an instruction has no room for."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a program spends its predicted time on, as shares between 0 and 1.

    Attributes:
      products: matrix products.
      exponentials: exp and its kin, less what sines and all other transcendental functions take.
    """

    products: float = 0.0
    exponentials: float = 0.0


ANY_WORK = tuple(Work(products=p, exponentials=e) for e in (0.0, 1.0) for p in (1.0, 0.0))
"""Programs between which a target's compile options may differ."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a device does in a second, and what its compiler does with a program.

    Attributes:
      flops: multiply-adds of a matrix product, times two.
      elements: cheap element-wise operations.
      chained: elements of a reduction along more than `longest_fused_reduction` indices.
      blocked: the same where exla writes it in blocks.
      shortened: elements of a reduction along fewer indices than a warp of a GPU has threads; infinite elsewhere.
      shortened_nearby: the same where what a row is computed of stays beside the multiprocessor.
      near_row_bytes: up to what size of a row that is.
      transcendentals: exp, log and their kin.
      serials: sines, powers and what else is no polynomial, and random bits (on two cores 1.2e8 to 4.8e8, sines 2.4e8).
      compares: element moves of a sort.
      scatters: elements of indices and updates that a scatter writes.
      selects: elements that a top-k looks at.
      select_row_s: time to start one row of a top-k.
      bytes_per_s: memory traffic beyond the caches.
      cached_bytes_per_s: traffic within them.
      first_touch_bytes_per_s: how fast the system hands out memory that was not in use before.
      kept_bytes: temporaries up to which the allocator keeps the memory of one run for the next.
      cache_bytes: working set of one chunk that stays in fast memory.
      near_bytes: of the cores' own caches, in which what a loop combines its outputs in stays; 0 where there are none.
      near_bytes_per_s: traffic within them.
      host_bytes_per_s: traffic between the device's memory and the host's; 0 where they are one.
      kernel_s: time to start one kernel, on all cores.
      trip_s: time that a trip of a loop takes beside its kernels.
      one_core: times as long that one core takes for what all do; infinite where there are no cores.
      one_core_kernel_s: time to start a kernel on one core.
      one_core_trip_s: time that a trip takes beside them.
      threads: of the libraries that compute matrix products and the like on a CPU; 0 elsewhere.
      lanes: a chunk of a multiple of so many indices wastes nothing.
      matrix_tile: matrix products are computed in tiles of so many rows and columns.
      product_passes: how often a matrix product goes over an operand whose axes do not lie in its order, which is
        transposed first.
      one_vector: share of the time that short reductions over the last axis, and what they fuse, take where the axis
        before it is one vector long: LLVM unrolls both, and adds vectors instead of single numbers.
      longest_fused_reduction: indices of an axis that the compiler reduces without storing what it reduces; None
        where there is no such bound.
      blocks: whether exla writes long reductions in blocks (`exla.ir.blocks`).
      accumulator_bytes: what a fused reduction may accumulate at once, in float32, without being slow; None where there
        is no such bound.
      spilled_bytes_per_s: how fast it accumulates more.
      on_chip_bytes: memory on the chip of a TPU, in which its compiler keeps whole values; 0 elsewhere.
      instruction_bytes: what it sets aside of that for what instructions work on.
      counts_code: whether the compiler counts the program's own code, which lies in the device's memory; TPUs' does.
      multiprocessors: of a GPU; 0 elsewhere.
      capability: compute capability of a GPU; 0 elsewhere.
      peak_flops: of a GPU's data sheet, by which its compiler weighs what to compute again; 0 elsewhere.
      peak_bytes_per_s: the same of its memory.
      keeps_branches: whether the compiler leaves in a conditional's branches what is there, and nothing else. Those of
        GPUs make selections of conditionals, those of TPUs move what reads the results into the branches.
      sure_gain: how many times as fast as the plain program something must be predicted to be, to be so in fact;
        infinite where nothing was measured.
      roomy_bytes: temporaries up to which a program's instructions work on large blocks at a time; None where there is
        no such bound.
    """

    flops: float = 2e11
    elements: float = 2e10
    chained: float = 4e9
    blocked: float = 1.1e10
    shortened: float = math.inf
    shortened_nearby: float = math.inf
    near_row_bytes: int = 0
    transcendentals: float = 2e9
    serials: float = 2.5e8
    compares: float = 1e8
    scatters: float = 3e8
    selects: float = 1e9
    select_row_s: float = 1e-6
    bytes_per_s: float = 8e9
    cached_bytes_per_s: float = 1.5e10
    first_touch_bytes_per_s: float = 6e9
    kept_bytes: int = 0
    cache_bytes: int = 8 << 20
    near_bytes: int = 2 << 20
    near_bytes_per_s: float = 8e10
    host_bytes_per_s: float = 0.0
    kernel_s: float = 1e-5
    trip_s: float = 1.8e-5
    one_core: float = 1.6
    one_core_kernel_s: float = 1e-7
    one_core_trip_s: float = 1e-6
    threads: int = 2
    lanes: int = 8
    matrix_tile: int = 1
    product_passes: int = 3
    one_vector: float = 0.4
    longest_fused_reduction: int | None = 32
    blocks: bool = False
    keeps_branches: bool = True
    sure_gain: float = math.inf
    roomy_bytes: int | None = None
    accumulator_bytes: int | None = None
    spilled_bytes_per_s: float = math.inf
    on_chip_bytes: int = 0
    instruction_bytes: int = 0
    counts_code: bool = False
    multiprocessors: int = 0
    capability: float = 0.0
    peak_flops: float = 0.0
    peak_bytes_per_s: float = 0.0

    def crowding(self, temporary_bytes: float) -> float:
        """How many times as long a program takes because of its temporaries.

        The compiler of TPUs divides fast memory among what an instruction reads and writes, each buffer there twice;
        what has larger operands works on smaller blocks. By its estimates of 149 programs (`benchmarks/campaigns`) a
        program takes a fifth longer for each doubling.
        """
        if self.roomy_bytes is None or temporary_bytes <= self.roomy_bytes:
            return 1.0
        return 1 + CROWDED * math.log2(temporary_bytes / self.roomy_bytes)

    def touching_s(self, temporary_bytes: float) -> float:
        """Seconds that the system takes to hand out a run's temporaries, which are one allocation."""
        return temporary_bytes / self.first_touch_bytes_per_s if temporary_bytes > self.kept_bytes else 0.0

    @classmethod
    def of(cls, facts: Facts) -> Machine:
        """The machine of a data sheet.

        Args:
          facts: its numbers.
        """
        vectors, is_gpu = REACHED * facts.vector_flops, "multiprocessors" in facts.compiler
        return cls(
            flops=REACHED * facts.float32_matrix_flops,
            elements=vectors / 2,  # the sheet counts a fused multiply-add as two
            chained=vectors / 2,
            blocked=vectors / 2,
            shortened=facts.cached_bytes_per_s * SHORTENED / 4 if is_gpu else math.inf,
            shortened_nearby=vectors / 5 if is_gpu else math.inf,
            near_row_bytes=int(facts.compiler.get("shared_memory_per_multiprocessor", 0)),
            transcendentals=vectors / 16,  # a quarter of the lanes or fewer, several instructions each
            serials=vectors / 16,
            compares=facts.sorted_per_s,
            scatters=facts.scattered_per_s,
            selects=facts.selected_per_s,
            select_row_s=facts.selected_row_s or 0.0,
            bytes_per_s=REACHED * facts.bytes_per_s,
            cached_bytes_per_s=REACHED * facts.cached_bytes_per_s,
            first_touch_bytes_per_s=math.inf,
            cache_bytes=facts.cache_bytes // 8,
            host_bytes_per_s=REACHED * facts.host_bytes_per_s,
            near_bytes=0,
            kernel_s=facts.kernel_s,
            trip_s=TRIP_S if is_gpu else 2 * facts.kernel_s,
            one_core=math.inf,
            threads=0,
            lanes=facts.lanes,
            matrix_tile=facts.lanes,
            product_passes=1,
            one_vector=1.0,
            longest_fused_reduction=None,
            keeps_branches=False,
            roomy_bytes=None if facts.instruction_bytes is None else facts.instruction_bytes // 2,
            accumulator_bytes=facts.accumulator_bytes,
            spilled_bytes_per_s=facts.spilled_bytes_per_s or math.inf,
            on_chip_bytes=facts.cache_bytes if facts.name.startswith("tpu:") else 0,
            instruction_bytes=facts.instruction_bytes or 0,
            counts_code=facts.name.startswith("tpu:"),
            multiprocessors=int(facts.compiler.get("multiprocessors", 0)),
            capability=float(facts.compiler.get("compute_capability", 0)),
            peak_flops=facts.vector_flops if is_gpu else 0.0,
            peak_bytes_per_s=facts.bytes_per_s if is_gpu else 0.0,
        )
