"""Kaggle submissions: the format, the score, and every way to get them wrong."""

import numpy as np
import pytest

from exla.datasets.tpugraphs_adapter import (
    TpuGraphsError,
    check_submission,
    rank,
    read,
    read_submission,
    score_submission,
    write_submission,
)
from tests.datasets.made import layout_arrays, layout_file, save, tile_arrays

LAYOUT, TILE, SMALL = "layout:xla:random:a", "tile:xla:b", "tile:xla:c"


@pytest.fixture
def files(tmp_path):
    ones = np.full(8, 10)
    tile = save(
        tmp_path / "b.npz",
        tile_arrays(c=8),
        config_runtime=np.array([10, 20, 30, 40, 50, 60, 70, 80]),
        config_runtime_normalizers=ones,
    )
    small = save(
        tmp_path / "c.npz",
        tile_arrays(c=2),
        config_runtime=np.array([100, 90]),
        config_runtime_normalizers=np.array([100, 60]),
    )
    layout = save(tmp_path / "a.npz", layout_arrays(c=4), config_runtime=np.array([400, 100, 300, 200]))
    return {LAYOUT: read(layout), TILE: read(tile), SMALL: read(small)}


def test_a_submission_is_a_header_and_a_line_for_each_file(tmp_path):
    path = tmp_path / "submission.csv"
    rankings = {LAYOUT: rank([4.0, 1.0, 3.0, 1.0]), TILE: [7, 0, 12]}
    write_submission(path, rankings)
    assert path.read_text() == f"ID,TopConfigs\n{LAYOUT},1;3;2;0\n{TILE},7;0;12\n"
    found = read_submission(path)
    assert {k: v.tolist() for k, v in found.items()} == {LAYOUT: [1, 3, 2, 0], TILE: [7, 0, 12]}


def test_the_score_is_that_of_the_competition(files):
    found = score_submission({LAYOUT: [1, 3, 0, 2], TILE: [7, 5, 2, 1, 3, 0], SMALL: [0, 1]}, files)
    assert found.by_file[LAYOUT] == pytest.approx(1 - 2 * 1 / 6), "one of six pairs is in the wrong order"
    assert found.by_file[TILE] == 2 - 20 / 10, "the best of the first five takes twice the best: 0 comes sixth"
    assert found.by_file[SMALL] == 1.0
    assert found.by_collection == {"layout:xla:random": found.by_file[LAYOUT], "tile:xla": 0.5}
    assert found.mean == pytest.approx((2 / 3 + 0.5) / 2), "of collections, not of files"


def test_the_best_order_scores_one_and_the_worst_layout_minus_one(files, tmp_path):
    best = {id: rank(file.target) for id, file in files.items()}
    write_submission(tmp_path / "s.csv", best)
    assert score_submission(tmp_path / "s.csv", files).mean == 1.0
    assert score_submission({LAYOUT: best[LAYOUT][::-1]}, {LAYOUT: files[LAYOUT]}).mean == -1.0


def test_a_tile_is_scored_by_ratios_not_by_runtimes(files):
    assert files[SMALL].target.tolist() == [1.0, 1.5], "the slower runtime is the better ratio"
    assert rank(files[SMALL].target).tolist() == [0, 1]


def test_tau_b_counts_runtimes_that_tie_out(tmp_path):
    from scipy.stats import kendalltau

    runtime = np.array([3, 1, 1, 2, 2])
    file = layout_file(tmp_path, config_runtime=runtime)
    order = [1, 3, 2, 4, 0]
    places = np.argsort(order)
    found = score_submission({LAYOUT: order}, {LAYOUT: file}).mean
    assert found == pytest.approx(kendalltau(places, runtime).statistic)


WRONG = {
    "missing": ({}, "tile:xla:b: expected a ranking of every file; found none of this one"),
    "unknown": ({"tile:xla:z": [0]}, "tile:xla:z: expected rankings of the files only"),
    "no id": ({"z": [0]}, "z: expected rankings of the files only"),
    "beyond": ({TILE: [0, 1, 2, 3, 8]}, "tile:xla:b: expected rows from 0 to 7; found 8"),
    "before": ({TILE: [0, 1, 2, 3, -1]}, "found -1"),
    "repeated": ({TILE: [0, 1, 2, 3, 4, 1]}, "each row once; found row 1 2 times"),
    "few of a tile": ({TILE: [0, 1, 2, 3]}, "at least 5 different rows; found 4"),
    "few of a small tile": ({SMALL: [0]}, "at least 2 different rows; found 1"),
    "few of a layout": ({LAYOUT: [0, 1, 2]}, "at least 4 different rows; found 3"),
    "halves": ({LAYOUT: [0.5, 1, 2, 3]}, "a list of rows; found float64"),
}


@pytest.mark.parametrize("changes, message", WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_ranking_is_named(changes, message, files):
    rankings = {id: np.arange(file.num_configs) for id, file in files.items()} | changes
    if not changes:
        del rankings[TILE]
    with pytest.raises(TpuGraphsError, match=message):
        score_submission(rankings, files)


def test_all_that_is_wrong_is_raised_together(files):
    problems = check_submission({TILE: [9, 9], "tile:xla:z": [0], SMALL: [1, 0]}, files)
    assert sorted({p.array for p in problems}) == [LAYOUT, TILE, "tile:xla:z"]
    assert len([p for p in problems if p.array == TILE]) == 3
    assert check_submission({id: rank(file.target) for id, file in files.items()}, files) == []
    assert [p.array for p in check_submission({}, {})] == ["files"]


LINES = {
    "header": ("id,configs\n", "line 1: expected ID,TopConfigs; found 'id,configs'"),
    "empty": ("", "line 1"),
    "twice": (f"ID,TopConfigs\n{TILE},1\n{TILE},2\n", f"line 3: expected each id once; found {TILE} again"),
    "words": (f"ID,TopConfigs\n{TILE},1;two\n", "line 2: expected rows with ; between.*; found 'two'"),
    "nothing": (f"ID,TopConfigs\n{TILE},\n", "line 2: .*found ''"),
    "no comma": (f"ID,TopConfigs\n{TILE}\n", "line 2: .*found ''"),
    "huge": (f"ID,TopConfigs\n{TILE},{'9' * 40}\n", "line 2: .*found '9999"),
    "negative": (f"ID,TopConfigs\n{TILE},-1\n", "line 2: .*found '-1'"),
    "commas": (f"ID,TopConfigs\n{TILE},1,2\n", "line 2: .*found '1,2'"),
    "id": ("ID,TopConfigs\nresnet,1\n", "line 2: expected a collection, a colon and a file's name; found 'resnet'"),
    "blank": ("ID,TopConfigs\n\n", "line 2"),
}


@pytest.mark.parametrize("text, message", LINES.values(), ids=LINES)
def test_lines_that_are_no_ranking_are_named(text, message, tmp_path):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(TpuGraphsError, match=message):
        read_submission(tmp_path / "s.csv")


def test_what_would_be_refused_is_not_written(tmp_path):
    with pytest.raises(TpuGraphsError) as raised:
        write_submission(tmp_path / "s.csv", {TILE: [1, 1], LAYOUT: [-1], "resnet": [0]})
    assert [p.array for p in raised.value.problems] == [TILE, LAYOUT, "'resnet'"]
    assert not (tmp_path / "s.csv").exists()
    with pytest.raises(TpuGraphsError, match="expected a CSV file"):
        read_submission(tmp_path / "s.csv")


def test_what_is_written_is_what_is_read_with_a_byte_order_mark_too_and_nothing_is_no_ranking(tmp_path):
    path = tmp_path / "submission.csv"
    write_submission(path, {"tile:xla:a": [3, 1]})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_submission(path)["tile:xla:a"].tolist() == [3, 1]
    with pytest.raises(TpuGraphsError, match="at least one row"):
        write_submission(path, {"tile:xla:a": []})


def test_files_without_an_order_cannot_be_scored(tmp_path):
    same = layout_file(tmp_path, config_runtime=np.full(5, 7))
    with pytest.raises(TpuGraphsError, match="runtimes that differ"):
        score_submission({LAYOUT: np.arange(5)}, {LAYOUT: same})
    hidden = layout_file(tmp_path / "test", config_runtime=np.zeros(5, np.int64))
    assert check_submission({LAYOUT: np.arange(5)}, {LAYOUT: hidden}) == []
    with pytest.raises(TpuGraphsError, match="withheld"):
        score_submission({LAYOUT: np.arange(5)}, {LAYOUT: hidden})


def test_scores_that_tie_are_ranked_in_the_order_of_the_file():
    scores = np.arange(400) % 3
    assert rank(scores).tolist() == sorted(range(400), key=lambda row: (scores[row], row))


def test_nan_is_no_score():
    with pytest.raises(TpuGraphsError, match="NaN"):
        rank([1.0, float("nan")])
