"""How well cost models rank TpuGraphs' real files: alexnet's layouts, twelve tile kernels, and what each part adds.

    python -m benchmarks.cost_model --data FOLDER [--parts ranker segments ceiling alexnet ablation tile] [--seeds 5]
    python -m benchmarks.cost_model --data FOLDER --parts split --seeds 1

FOLDER holds `layout/alexnet_train_batch_32.npz` and `tile/*.npz`; for split it is a device's folder of `exla profile
export`, with train, valid and test. Every configuration is there once, with its fastest measurement (*minimum*), or not
at all where it was measured more than once (*drop*).

- alexnet: trained on random configurations, tested on all others; *ridge* and *trees* see the same without a graph.
- ceiling: what alexnet's labels allow, whoever ranks them (`benchmarks/tabular.py`).
- ablation: alexnet once more, with one part of the model or of its training taken away,
  exchanged or added.
- tile: leave one kernel out; mean error of the best of the five predicted to be fastest, and of five at random, of the
  same configurations.
- split: exla's own programs, trained on some families and tested on all others, one part taken away or exchanged;
  *prediction* is the roofline's time, which the model begins as.
- ranker: time to score 512 candidates of a program of 300 nodes.
- segments: memory and time of training by segments, and on whole programs.

Noise decides how well the true order can be known: `noise_floor` is the Kendall tau of the labels and the same labels
measured again, as far as repeats in the file tell.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import isolate, record
from benchmarks.tabular import rows_of
from exla.cost_model.batch import Sample, collate
from exla.cost_model.checkpoint import Trained, save
from exla.cost_model.graph import Graph
from exla.cost_model.inputs import Inputs
from exla.cost_model.models import MODELS
from exla.cost_model.normalise import Normaliser
from exla.cost_model.ranker import load_ranker
from exla.cost_model.split_configs import COLUMNS
from exla.datasets.tpugraphs_adapter import deduplicate, read, write_layout
from exla.training.config import make_config, read_config
from exla.training.data import open_split
from exla.training.evaluate import evaluate
from exla.training.scoring import Ranked
from exla.training.train import train

PARTS = ("ranker", "segments", "ceiling", "alexnet", "ablation", "tile", "split")
KEEP = ("minimum", "drop")
STEPS = {1000: 1000, 10000: 2000}
SPLIT_STEPS = 200
OURS = {"hidden": 32, "blocks": 3}
ALONE = {"wide": True, "cross_config": False, "per_candidate_norm": True}
"""Each candidate is scored as if it were the only one; see `training/configs/one_program.toml`."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "with cross-config attention": {"options": {"cross_config": True}},
    "norm of all candidates together": {"options": {"per_candidate_norm": False}},
    "both: candidates compared": {"options": {"cross_config": True, "per_candidate_norm": False}},
    "both, 1024 scored together": {
        "options": {"cross_config": True, "per_candidate_norm": False},
        "data": {"configs_scored": 1024},
    },
    "without config embedding": {"options": {"embed_config": False}},
    "GCN for SAGE": {"options": {"sage": False}},
    "without the wide part": {"options": {"wide": False}},
    "MSE for hinge": {"loss": "rank_mse"},
    "ListMLE for hinge": {"loss": "list_mle"},
    "official baseline": {"name": "layout_residual_gcn", "options": {"hidden": 32, "layers": 3}},
}
SPLIT_ABLATIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "without cross-config attention": {"options": {"cross_config": False}},
    "without config embedding": {"options": {"embed_config": False}},
    "GCN for SAGE": {"options": {"sage": False}},
    "MSE for hinge": {"loss": "rank_mse"},
    "delay_huber for hinge": {"loss": "delay_huber"},
    "expected_delay for hinge": {"loss": "expected_delay"},
    "instance norm": {"options": {"per_candidate_norm": True}},
    "instance norm, without cross-config attention": {"options": {"per_candidate_norm": True, "cross_config": False}},
    "without the prediction": {"options": {"prior": -1}},
}
"""Of `training/configs/split.toml` with 24 channels, the pairwise hinge and a head that is trusted all the way."""
WHERE = dict.fromkeys(("ridge", "trees", "ceiling"), "tabular")
"""Modules of the functions that are not here."""
TILE_MODELS = ("tile_early_join_sage", "tile_late_join_sage", "tile_residual_gcn", "tile_mlp")


def alexnet(
    data: str, rows: int, seed: int, ablation: str = "ours", keep: str = "minimum", steps: int | None = None
) -> dict[str, Any]:
    """Train on `rows` configurations, and rank the rest."""
    change = ABLATIONS[ablation]
    name = change.get("name", "split_sage")
    options = {**(OURS | ALONE if name == "split_sage" else {}), **change.get("options", {})}
    given = rows_of(data, rows, seed, keep)
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(
            {
                "model": {"name": name, "options": options},
                "data": {**given, "graphs": 1, "configs": 64, "prune_hops": 1, **change.get("data", {})},
                "held_out": {"by": "rows"},
                "optimiser": {
                    "steps": steps or STEPS[rows],
                    "learning_rate": 2e-3,
                    "loss": change.get("loss", "pairwise_hinge"),
                },
                "run": {"folder": folder, "seed": seed, "evaluate_every": 0, "checkpoint_every": 0},
            }
        )
        started = time.perf_counter()
        card = train(config).card
    (found,) = card["metrics"]["graphs"]
    return {"tested": given["held_out_rows"], "train_s": time.perf_counter() - started, **found}


def tile(data: str, model: str, seed: int) -> dict[str, Any]:
    """Leave each kernel out in turn."""
    files = sorted(str(path) for path in (Path(data) / "tile").glob("*.npz"))
    errors = []
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # most folds have the same shapes
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        for fold in range(len(files)):
            folder = str(Path(cache) / f"run_{fold}")
            config = make_config(
                {
                    "model": {"name": model, "options": {"hidden": 32, "layers": 2}},
                    "data": {"files": files, "graphs": 4, "configs": 32, "seed": seed},
                    "held_out": {"by": "leave-one-out", "fold": fold},
                    "optimiser": {"steps": 200, "learning_rate": 1e-3, "loss": "list_mle"},
                    "run": {"folder": folder, "seed": seed, "evaluate_every": 0, "checkpoint_every": 0},
                }
            )
            errors.append(train(config).card["metrics"]["tile_top_5_error"])
    return {"kernels": len(files), "top_5_error": statistics.mean(errors), "errors": errors}


def tile_at_random(data: str, k: int = 5) -> dict[str, Any]:
    """Expected error of the best of k at random, of the configurations that models are tested on."""
    errors, choices = [], 0
    for path in sorted((Path(data) / "tile").glob("*.npz")):
        file = read(path)
        times = np.sort(file.target[deduplicate(file).rows])
        tried = min(k, len(times))
        choices += len(times) > k and bool(times[-k] > times[0])  # k can be named that are all slower than the best
        # The best of those tried is the one at place i if the others are of the slower ones.
        chances = [math.comb(len(times) - 1 - i, tried - 1) / math.comb(len(times), tried) for i in range(len(times))]
        errors.append(float(chances @ times / times[0] - 1))
    return {"kernels": len(errors), "with_a_choice": choices, "top_5_error": statistics.mean(errors), "errors": errors}


def split(data: str, ablation: str, seed: int, steps: int) -> dict[str, Any]:
    """Train on the families of the folder train, and rank the programs of all others; means over programs."""
    change = SPLIT_ABLATIONS[ablation]
    with tempfile.TemporaryDirectory() as folder:
        given = {
            **{f"model.options.{name}": value for name, value in {"hidden": 24, **change.get("options", {})}.items()},
            "data.files": [str(Path(data) / "train")],
            "held_out.files": [str(Path(data) / part) for part in ("valid", "test")],
            "optimiser.loss": change.get("loss", "pairwise_hinge"),
            "optimiser.steps": steps,
            "optimiser.trust": 1.0,
            **{"run.folder": folder, "run.seed": seed, "run.evaluate_every": 0, "run.checkpoint_every": 0},
        }
        config = read_config("split", [f"{key}={json.dumps(value)}" for key, value in given.items()])
        started = time.perf_counter()
        found = train(config).card["metrics"]
    return {"programs": len(found["graphs"]), "train_s": time.perf_counter() - started, **_of_programs(found)}


def split_predicted(data: str) -> dict[str, Any]:
    """The same of the roofline's time."""
    held_out = [str(Path(data) / part) for part in ("valid", "test")]
    parts = open_split(make_config({"data": {"files": held_out}, "held_out": {"by": "nothing"}})).train
    column = COLUMNS.index("predicted_us")
    ranked = [Ranked.of(p, p.sample(np.arange(len(p.rows))).node_config[..., column].max(1)) for p in parts]
    return {"programs": len(ranked), **_of_programs(evaluate(ranked))}


def _of_programs(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Kendall's tau with its standard error, and slowdowns: means over programs, of slowdowns geometric ones."""
    slowdowns = {k: [1 + graph[f"slowdown_{k}"] for graph in evaluation["graphs"]] for k in (1, 5)}
    means = {f"slowdown_{k}": statistics.geometric_mean(values) - 1 for k, values in slowdowns.items()}
    tau, deviation = (evaluation[of]["kendall_tau"] for of in ("mean", "deviation"))
    error = deviation / math.sqrt(len(evaluation["graphs"]))
    return {"kendall_tau": tau, "standard_error": error, **means, "worst_slowdown_1": max(slowdowns[1]) - 1}


def ranker(candidates: int, nodes: int, prune_hops: int | None) -> dict[str, Any]:
    """Time of a process's first call, with and without JAX's compilation cache filled, and of later ones."""
    graph, configs, _ = _made(nodes, candidates)
    with tempfile.TemporaryDirectory() as folder:
        weights, asked = Path(folder) / "w.npz", Path(folder) / "asked.npz"
        normaliser = Normaliser.fit([graph])
        model = MODELS.get("split_sage")(**OURS)
        batch = collate([Sample(graph=graph, node_config=configs[:4])], normaliser)
        save(
            weights,
            Trained(
                model="split_sage",
                options=OURS,
                variables=model.init(jax.random.key(0), batch),
                normaliser=normaliser,
                inputs=Inputs(prune_hops=prune_hops),
            ),
        )
        write_layout(asked, graph=graph, configs=configs, runtime=np.arange(candidates) + 1)
        call = {"weights": str(weights), "asked": str(asked)}
        plain = isolate.call("benchmarks.cost_model:score", **call)
        cache = {**call, "cache": str(Path(folder) / "cache")}
        isolate.call("benchmarks.cost_model:score", **cache)
        cached = isolate.call("benchmarks.cost_model:score", **cache)
    return {**plain, "first_with_cache_s": cached["first_s"]}


def score(weights: str, asked: str, cache: str | None = None) -> dict[str, Any]:
    """Load weights and score a file's configurations, first and warm; processor time is of all cores together."""
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    file = read(asked)
    configs = file.configs()
    started = time.perf_counter()
    ranker = load_ranker(weights)
    ranker.score(file.graph, configs)
    first_s = time.perf_counter() - started
    times, processor = [], []
    for _ in range(20):
        begun, used = time.perf_counter(), time.process_time()
        ranker.score(file.graph, configs)
        times.append(time.perf_counter() - begun)
        processor.append(time.process_time() - used)
    seen = ranker.trained.inputs.reduced(file.graph)[0].num_nodes
    return {
        "first_s": first_s,
        "warm_s": statistics.median(times),
        "warm_fastest_s": min(times),
        "warm_processor_s": statistics.median(processor),
        "nodes": file.graph.num_nodes,
        "nodes_seen": seen,
    }


def segments(count: int, size: int, by_segments: bool, steps: int = 8) -> dict[str, Any]:
    """Growth of a process that trains on a program of `count` segments of `size` nodes, and the time of a step."""
    import dataclasses

    import jax

    from exla.cost_model.losses import LOSSES
    from exla.cost_model.models import MODELS
    from exla.search.child import growth
    from exla.training.config import OptimiserConfig, SegmentsConfig
    from exla.training.data import open_split
    from exla.training.parallel import make_mesh, on_all, spread
    from exla.training.sampling import Sampler
    from exla.training.segments import SegmentSampler, make_segment_step, start_history
    from exla.training.step import make_optimiser, make_step, start
    from exla.training.train import fit_normaliser

    hidden, candidates = 32, 32
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.npz"
        graph, configs, runtime = _made(count * size, 64)
        write_layout(path, graph=graph, configs=configs, runtime=runtime)
        split = open_split(
            make_config(
                {"data": {"files": [str(path)], "cache": folder, "configs": candidates}, "held_out": {"by": "nothing"}}
            )
        )
    normaliser, mesh = fit_normaliser(split), make_mesh(jax.devices()[:1])
    model = MODELS.get("split_sage")(hidden=hidden, blocks=3)
    optimiser, loss = make_optimiser(OptimiserConfig(steps=steps)), LOSSES.get("pairwise_hinge")
    given: dict[str, Any] = {"graphs": 1, "configs": candidates, "shards": 1, "seed": 0}
    sampler: Any
    if by_segments:
        sampler = SegmentSampler(split.train, normaliser, **given, how=SegmentsConfig(size=size), steps=steps)
        first = sampler.shard(0, 0).batch
        history = start_history(sampler.table_size, 2 * hidden)
        make: Any = make_segment_step
    else:
        sampler = Sampler(split.train, normaliser, **given)
        first, history, make = sampler.shard(0, 0), None, make_step
    state = dataclasses.replace(start(jax.jit(model.init)(jax.random.key(0), first), optimiser), history=history)
    state = on_all(mesh, state)
    batches = [spread(mesh, [sampler.shard(i, 0)]) for i in range(steps)]
    step = make(model, loss, optimiser, 0.99, mesh).lower(state, batches[0]).compile()
    times = []

    def run() -> Any:
        now = state
        for batch in batches:
            begun = time.perf_counter()
            now = jax.block_until_ready(step(now, batch)[0])
            times.append(time.perf_counter() - begun)
        return now

    _, grown = growth(run)
    return {
        "growth_bytes": grown.growth_bytes,
        "compiled_temp_bytes": step.memory_analysis().temp_size_in_bytes,
        "table_bytes": 0 if history is None else history.summary.nbytes + history.known.nbytes,
        "step_s": statistics.median(times[1:]),
    }


def _made(nodes: int, candidates: int) -> tuple[Graph, np.ndarray, np.ndarray]:
    """A random program whose edges are short, a tenth of its nodes configurable; runtimes follow configurations."""
    random = np.random.default_rng(nodes)
    producer = random.integers(0, nodes - 1, nodes * 3 // 2)
    consumer = np.minimum(producer + random.integers(1, 20, len(producer)), nodes - 1)
    graph = Graph(
        name="made",
        node_feat=random.integers(0, 100, (nodes, 140)).astype(np.float32),
        node_opcode=random.integers(1, 120, nodes).astype(np.uint8),
        edge_index=np.unique(np.stack([consumer, producer], 1), axis=0),
        node_config_ids=np.arange(0, nodes, 10),
        node_splits=np.array([0, nodes]),
    )
    configs = random.integers(-1, 6, (candidates, graph.num_config_nodes, 18)).astype(np.float32)
    runtime = (10**6 + 1000 * (configs[..., 0].mean(1) + 1)).astype(np.int64) + np.arange(candidates)
    return graph, configs, runtime


def _each(arguments: argparse.Namespace) -> Any:
    """(what is measured, function, its arguments) one after another."""
    data = arguments.data
    if "ranker" in arguments.parts:
        for hops in (None, 1):
            yield f"ranker, prune_hops={hops}", "ranker", {"candidates": 512, "nodes": 300, "prune_hops": hops}
    if "segments" in arguments.parts:
        for count in (1, 5, 10, 20, 40):
            yield f"{count} segments", "segments", {"count": count, "size": 500, "by_segments": True}
        for count in (1, 5, 10):
            yield f"{count} segments as a whole", "segments", {"count": count, "size": 500, "by_segments": False}
    if "ceiling" in arguments.parts:
        for keep in KEEP:
            yield f"ceiling, repeats: {keep}", "ceiling", {"data": data, "keep": keep}
    if "ablation" in arguments.parts:
        for name in arguments.only or ABLATIONS:
            given = {"data": data, "rows": 1000, "seed": 0, "ablation": name}
            yield f"{name}, 1000 rows", "alexnet", given
    if "alexnet" in arguments.parts:
        for seed, keep, rows in itertools.product(range(arguments.first_seed, arguments.seeds), KEEP, STEPS):
            given = {"data": data, "rows": rows, "seed": seed, "keep": keep}
            yield f"alexnet, {rows} rows, repeats: {keep}, seed {seed}", "alexnet", given
            yield f"ridge, {rows} rows, repeats: {keep}, seed {seed}", "ridge", given
            yield f"trees, {rows} rows, repeats: {keep}, seed {seed}", "trees", given
    if "tile" in arguments.parts:
        for seed, model in itertools.product(range(arguments.first_seed, arguments.seeds), TILE_MODELS):
            yield f"tile, {model}, seed {seed}", "tile", {"data": data, "model": model, "seed": seed}
        yield "tile, at random", "tile_at_random", {"data": data}
    if "split" in arguments.parts:
        yield "split, prediction", "split_predicted", {"data": data}
        seeds, names = range(arguments.first_seed, arguments.seeds), arguments.only or SPLIT_ABLATIONS
        for seed, name in itertools.product(seeds, names):
            given = {"data": data, "ablation": name, "seed": seed, "steps": SPLIT_STEPS}
            yield f"split, {name}, seed {seed}", "split", given


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", required=True, metavar="FOLDER", help="layout/ and tile/ of TpuGraphs' files, or a split collection"
    )
    parser.add_argument(
        "--parts", nargs="+", default=[part for part in PARTS if part != "split"], choices=PARTS, metavar="PART"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="of alexnet, tiles and split: 0 to N - 1")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="go on from this one")
    names = [*ABLATIONS, *SPLIT_ABLATIONS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="rows of an ablation, by name")
    arguments = parser.parse_args()
    results = record.open_results("cost_model")
    console = record.console()
    for what, function, given in _each(arguments):
        try:
            found = isolate.call(f"benchmarks.{WHERE.get(function, 'cost_model')}:{function}", timeout_s=3600, **given)
        except isolate.ChildError as error:
            console.print(f"{what}: {error}", markup=False)
            continue
        results.append(what=what, arguments={k: v for k, v in given.items() if k != "data"}, **found)
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items() if not isinstance(v, list)}
        console.print(what, shown, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
