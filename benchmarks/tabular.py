"""What needs no graph to rank alexnet's layouts, and what its noisy labels allow: called by `benchmarks.cost_model`.

Ridge and trees see the numbers of all configurable nodes side by side, know nothing of any other program, and are
trained and tested on the rows that a run of `exla train` with the same seed is.

`ceiling` estimates true runtimes by trees that see all labels of the file, more than any run does: in five parts, each
predicted from the others (*apart*), and fitted to the very labels that they are asked about (*fitted*), which is more
than a prediction can be. Where what is left over deviates as much as repeats of one configuration do, there is nothing
left to learn.
"""

from pathlib import Path
from typing import Any

import numpy as np

from exla.cost_model.batch import ranks
from exla.cost_model.metrics import kendall_tau, tau_allowed
from exla.datasets.tpugraphs_adapter import deduplicate, read
from exla.training.config import make_config
from exla.training.data import Part, open_split

ALEXNET = "layout/alexnet_train_batch_32.npz"
OPTIONS = {1000: {"max_iter": 150, "max_leaf_nodes": 8}, 10000: {"max_iter": 300, "max_leaf_nodes": 15}}
"""Of trees: for so many rows."""


def rows_of(data: str, rows: int, seed: int, keep: str) -> dict[str, Any]:
    """The section [data] of a config: train on `rows` configurations, and test on all others."""
    path = Path(data) / ALEXNET
    return {
        "files": [str(path)],
        "train_rows": rows,
        "held_out_rows": len(deduplicate(read(path), keep=keep).rows) - rows,
        "keep": keep,
        "seed": seed,
    }


def ridge(data: str, rows: int, seed: int, keep: str) -> dict[str, Any]:
    """Ridge regression of places on which value each number has."""
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import OneHotEncoder

    def fitted(numbers: np.ndarray, places: np.ndarray) -> Any:
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(numbers)
        model = Ridge(3.0).fit(encoder.transform(numbers), places)
        return lambda other: model.predict(encoder.transform(other))

    return _tested(data, rows, seed, keep, fitted)


def trees(data: str, rows: int, seed: int, keep: str) -> dict[str, Any]:
    """Boosted trees, fitted to places."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def fitted(numbers: np.ndarray, places: np.ndarray) -> Any:
        model = HistGradientBoostingRegressor(
            learning_rate=0.06, min_samples_leaf=10, l2_regularization=1.0, random_state=0, **OPTIONS[rows]
        )
        return model.fit(numbers, places).predict

    return _tested(data, rows, seed, keep, fitted)


def _tested(data: str, rows: int, seed: int, keep: str, fitted: Any) -> dict[str, Any]:
    split = open_split(make_config({"data": rows_of(data, rows, seed, keep), "held_out": {"by": "rows"}}))
    (train,), (test,) = split.train, split.held_out
    numbers = _numbers(train)
    varies = (numbers != numbers[:1]).any(0)
    predict = fitted(numbers[:, varies], ranks(train.runtime))
    return {"tested": len(test.rows), "kendall_tau": kendall_tau(predict(_numbers(test)[:, varies]), test.runtime)}


def _numbers(part: Part) -> np.ndarray:
    """(r, 18 nc): the configurations of a part as plain rows."""
    return part.sample(np.arange(len(part.rows))).node_config.reshape(len(part.rows), -1)


def ceiling(data: str, keep: str) -> dict[str, Any]:
    """What labels allow; times are of logarithms, so that deviations are shares of the runtime."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import GroupKFold

    file = read(Path(data) / ALEXNET)
    once = deduplicate(file, keep=keep)
    numbers = file.configs().reshape(file.num_configs, -1)
    numbers, logs = numbers[:, (numbers != numbers[:1]).any(0)], np.log(file.runtime)

    def fitted(rows: np.ndarray) -> Any:
        model = HistGradientBoostingRegressor(
            max_iter=500, learning_rate=0.1, max_leaf_nodes=31, min_samples_leaf=10, random_state=0
        )
        return model.fit(numbers[rows], logs[rows])

    apart: np.ndarray = np.empty(len(logs))
    for train, test in GroupKFold(5).split(numbers, groups=once.groups):
        apart[test] = fitted(train).predict(numbers[test])
    estimates = {"apart": apart, "fitted": fitted(np.arange(len(logs))).predict(numbers)}
    found: dict[str, Any] = {"tested": len(once.rows), "repeats_deviation": _repeats_deviation(once.groups, logs)}
    for name, estimate in estimates.items():
        found[f"{name}_deviation"] = float((logs - estimate).std())
        found[f"{name}_kendall_tau"] = kendall_tau(estimate[once.rows], once.runtimes)
        for parts, called in ((1, "tau_of_draws"), (5, "tau_of_draws_by_fifths")):
            found[f"{name}_{called}"] = _tau_of_draws(estimate, once.rows, once.groups, logs, parts)
        found[f"{name}_tau_allowed"] = tau_allowed(np.exp(estimate[once.rows]), once.groups, file.runtime)
    return found


def _tau_of_draws(
    estimate: np.ndarray, rows: np.ndarray, groups: np.ndarray, logs: np.ndarray, parts: int, draws: int = 5
) -> float:
    """Of true runtimes and the same measured once: noise is drawn for each row by itself from how repeats deviate.

    Of repeats in the same one of `parts` ranges of runtimes; 1 = of all.
    """
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    off = (logs - (np.bincount(group, logs) / counts)[group]) * np.sqrt(counts / np.maximum(counts - 1, 1))[group]
    is_repeat, true, random = counts[group] > 1, estimate[rows], np.random.default_rng(0)
    edges = np.quantile(estimate[is_repeat], np.arange(1, parts) / parts)
    noise = [off[is_repeat & (np.digitize(estimate, edges) == part)] for part in range(parts)]
    place, taus = np.digitize(true, edges), []
    for _ in range(draws):
        drawn = np.choose(place, [random.choice(values, len(true)) for values in noise])
        taus.append(kendall_tau(true, np.exp(true + drawn)))
    return float(np.mean(taus))


def _repeats_deviation(groups: np.ndarray, logs: np.ndarray) -> float:
    """Of measurements of one configuration from each other's mean, without bias."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    off = logs - (np.bincount(group, logs) / counts)[group]
    return float(np.sqrt((off**2).sum() / (counts - 1).sum()))
