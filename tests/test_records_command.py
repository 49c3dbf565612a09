"""`exla records`: what it prints, what it changes, and its exit codes."""

import json
import re

import jax.numpy as jnp
import pytest

import exla
from exla.cli import main
from exla.report.records import rows
from exla.search.records import RecordStore, make_key
from exla.search.shards import ONE_FILE
from exla.version import rules_hash
from tests.search.test_records import record

MIB = 1024**2
SINK = {"kind": "Sink", "path": [], "site": {"position": 3, "fingerprint": "ab"}, "operand": 1, "small_bytes": 0}
ABOUT = {"target": "tpu:v5e", "device": "TPU v5 lite", "source": "smooth.py:5 (smooth)"}
HOSTILE = {"strategy": "s\x1b[2J[bold]", "about": {"device": "d\x1b[2J\ud800[/bold]"}}
P, Q = (make_key(program=name, limit="1") for name in "pq")


@pytest.fixture
def folder(tmp_path):
    """Three records of one key and one of another, under EXLA_RECORDS_DIR."""
    store = RecordStore()
    store.append(record(key=P, status="oom", is_default=True, decisions=[], limit_bytes=MIB))
    store.append(record(key=P, run_s=0.25, compiled_bytes=MIB // 2, limit_bytes=MIB, decisions=[SINK], about=ABOUT))
    store.append(record(key=P, compiled_bytes=MIB, limit_bytes=MIB, decisions=[SINK, {"kind": "rm\x1b[2J"}]))
    store.append(record(key=Q, status="over_limit", compiled_bytes=3 * MIB, **HOSTILE))
    return store.directory


def call(capsys, *words):
    """(exit code, standard output, standard error) of `exla records ...`."""
    code = main(["records", *map(str, words)])
    out, errors = capsys.readouterr()
    return code, out, errors


def listed(capsys, *words):
    code, out, _ = call(capsys, "ls", "--json", *words)
    assert code == 0
    return {row["key"]["program"]: row for row in map(json.loads, out.splitlines())}


def test_ls_has_one_row_for_each_key(folder, capsys):
    rows = listed(capsys)
    assert rows.keys() == {P["program"], Q["program"]}
    row = rows[P["program"]]
    assert row["statuses"] == {"oom": 1, "ok": 2} and row["records"] == 3 and row["about"] == ABOUT
    assert row["best_run_s"] == 0.25 and row["compiled_bytes"] == MIB // 2 and row["limit_bytes"] == MIB
    assert rows[Q["program"]]["compiled_bytes"] == 3 * MIB
    code, out, _ = call(capsys, "ls")
    assert code == 0 and "4 records of 2 keys" in out
    assert all(
        text in out for text in ("tpu:v5e", "smooth.py:5", "2 ok", "1 oom", "0.25 s", "512.0 KiB", row["name"][:12])
    )


def test_what_comes_with_exla_is_listed_where_asked_for_and_shown(folder, tmp_path, monkeypatch, capsys):
    packaged = tmp_path / "packaged"
    packaged.mkdir()
    (packaged / "tpu-v5e.jsonl").write_text(record(key=make_key(program="shipped"), about=ABOUT).to_line() + "\n")
    monkeypatch.setattr("exla.search.records.PACKAGED", packaged)
    shipped = make_key(program="shipped")["program"]
    assert listed(capsys).keys() == {P["program"], Q["program"]}
    rows = listed(capsys, "--packaged")
    assert rows.keys() == {P["program"], Q["program"], shipped}
    assert "5 records of 3 keys" in call(capsys, "ls", "--packaged")[1]
    code, out, _ = call(capsys, "show", rows[shipped]["name"])
    assert code == 0 and f"key {rows[shipped]['name']}" in out


@pytest.mark.parametrize(
    "words, counts",
    [
        (("--status", "oom"), {P["program"]: 1}),
        (("--status", "oom", "--status", "over_limit"), {P["program"]: 1, Q["program"]: 1}),
        (("--program", Q["program"][:3]), {Q["program"]: 1}),
        (("--target", "tpu:v5e"), {P["program"]: 1}),
        (("--target", "cpu"), {}),
    ],
)
def test_ls_can_be_narrowed(words, counts, folder, capsys):
    assert {program: row["records"] for program, row in listed(capsys, *words).items()} == counts


def test_show_tells_every_candidate_in_words(folder, capsys):
    name = listed(capsys)[P["program"]]["name"]
    code, out, _ = call(capsys, "show", name[:6])
    assert code == 0 and f"key {name}" in out and P["program"] in out and "\x1b" not in out
    out = re.sub(r"[│\s]+", " ", out)  # a cell may be folded
    assert "1. compute operand 1 of equation 3 inside it 2. not understood: not a decision" in out
    assert all(text in out for text in ("1.0 MiB", "512.0 KiB", "as jax.jit compiles it", "TPU v5 lite"))
    code, out, _ = call(capsys, "show", name, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [r["status"] for r in records] == ["oom", "ok", "ok"]
    assert records[1]["in_words"] == ["compute operand 1 of equation 3 inside it"]


def test_what_a_terminal_would_obey_is_spelled_out(folder, capsys):
    name = listed(capsys)[Q["program"]]["name"]
    for out in (call(capsys, "ls")[1], call(capsys, "show", name)[1]):
        assert "d\\x1b[2J\\ud800[/bold]" in re.sub(r"[│\s]+", "", out) and "\x1b" not in out and "\ud800" not in out


@pytest.mark.parametrize("prefix, says", [("", "starts the names of 2 keys"), ("xyz", "starts no name")])
def test_show_asks_for_one_key(prefix, says, folder, capsys):
    code, out, errors = call(capsys, "show", prefix)
    assert code == 2 and not out and says in errors


def test_merge_adds_what_is_not_there_and_reports_bad_lines(folder, tmp_path, capsys):
    other, file = tmp_path / "other", tmp_path / "some.txt"
    RecordStore(other).append(record(7))
    RecordStore(other).append(record(key=Q, status="over_limit", compiled_bytes=3 * MIB, **HOSTILE))  # there
    (other / ONE_FILE).write_text(record(8).to_line() + "\n")
    file.write_text(record(8).to_line() + "\nnone\n" + record(9).to_line() + "\n")
    code, out, errors = call(capsys, "merge", "--json", other, file)
    assert code == 0 and json.loads(out) == {"read": 5, "added": 3, "bad_lines": 1}
    assert f"{file}:2: Expecting value" in errors
    assert all(RecordStore().lookup(record(k).key) == [record(k)] for k in (7, 8, 9))
    before = {p: p.read_bytes() for p in folder.iterdir()}
    assert json.loads(call(capsys, "merge", "--json", file, other, folder)[1])["added"] == 0
    assert {p: p.read_bytes() for p in folder.iterdir()} == before


def test_merge_makes_a_directory_that_is_not_there(folder, tmp_path, capsys):
    code, out, _ = call(capsys, "merge", folder, "--directory", tmp_path / "new")
    assert code == 0 and "4 records added" in out
    key = lambda r: r.to_line()  # noqa: E731
    assert sorted(RecordStore(tmp_path / "new").read().records, key=key) == sorted(
        RecordStore().read().records, key=key
    )


def test_merge_of_a_file_that_is_not_there_fails(folder, tmp_path, capsys):
    code, _, errors = call(capsys, "merge", tmp_path / "nowhere.jsonl")
    assert code == 1 and "nowhere.jsonl" in errors


@pytest.mark.parametrize(
    "words, left",
    [
        (("--status", "oom"), ["ok", "ok", "over_limit"]),
        (("--keep-best", "1"), ["oom", "ok", "over_limit"]),
        (("--program", P["program"][:4]), ["over_limit"]),
        (("--program", Q["program"][:4], "--status", "oom"), ["oom", "ok", "ok", "over_limit"]),
        (("--older-exla",), []),
    ],
)
def test_prune_removes_what_is_named(words, left, folder, capsys):
    code, out, _ = call(capsys, "prune", "--dry-run", "--json", *words)
    assert code == 0 and json.loads(out) == {"removed": 4 - len(left), "kept": len(left), "dry_run": True}
    assert len(RecordStore().read().records) == 4
    code, out, _ = call(capsys, "prune", *words)
    assert code == 0 and f"{4 - len(left)} line" in out and f"{len(left)} kept" in out
    assert sorted(r.status for r in RecordStore().read().records) == sorted(left)


def test_prune_of_older_ones_leaves_those_of_this_exla(folder, capsys):
    RecordStore().append(record(key={**P, **make_key(exla=rules_hash())}))
    assert json.loads(call(capsys, "prune", "--older-exla", "--json")[1])["kept"] == 1


def test_prune_takes_bad_lines_out(folder, capsys):
    (folder / ONE_FILE).write_text("none\n")
    assert call(capsys, "verify")[0] == 1
    assert json.loads(call(capsys, "prune", "--bad", "--json")[1])["removed"] == 1
    assert call(capsys, "verify")[0] == 0


@pytest.mark.parametrize(
    "words",
    [(), ("--keep-best", "-1"), ("--status", "oom", "--directory", "/nowhere")],
    ids=["nothing", "-1", "nowhere"],
)
def test_prune_that_is_not_understood_removes_nothing(words, folder, capsys):
    code, _, errors = call(capsys, "prune", *words)
    assert code == 2 and errors.startswith("exla: ") and len(RecordStore().read().records) == 4


def test_verify_prints_file_line_and_reason(folder, capsys):
    code, out, _ = call(capsys, "verify")
    assert code == 0 and "4 lines" in out and "0 bad" in out
    path = folder / "ab.jsonl"
    path.write_text('{"status": "\\u001b[2J"}\n\nhalf a li')
    code, out, _ = call(capsys, "verify")
    assert code == 1 and f"{path}:1: the line lacks fields" in out and f"{path}:3: the line is cut off" in out
    code, out, _ = call(capsys, "verify", "--json")
    assert code == 1 and [(b["file"], b["line"]) for b in json.loads(out)["bad"]] == [(str(path), 1), (str(path), 3)]
    assert "2 lines no record" in call(capsys, "ls")[2]


@pytest.mark.parametrize("command", [("ls",), ("verify",), ("prune", "--bad")])
def test_an_empty_directory_is_no_error_and_no_directory_is(command, tmp_path, capsys):
    assert call(capsys, *command)[0] == 0
    code, _, errors = call(capsys, *command, "--directory", tmp_path / "nowhere")
    assert code == 2 and "is not a directory" in errors


def test_a_search_says_for_people_what_it_was_about(capsys):
    def outer_sum(a):
        return jnp.sum(jnp.exp(a[:, None] - a[None]), axis=1)

    exla.jit(outer_sum, memory_limit="12KiB").plan(jnp.ones(64))
    (row,) = listed(capsys).values()
    assert row["about"]["target"] == "cpu" and row["about"]["device"] and "outer_sum" in row["about"]["source"]
    assert row["about"]["arguments"] == "f32[64]" and row["about"]["options"] == "default"
    out = call(capsys, "show", row["name"])[1]
    assert "split axis" in out.replace("\n", "")


def test_ls_says_what_tells_keys_of_a_program_and_records_of_a_key_apart(capsys):
    def outer_sum(a):
        return jnp.sum(jnp.exp(a[:, None] - a[None]), axis=1)

    for options in ({}, {"numerics": "exact"}):
        exla.jit(outer_sum, memory_limit="12KiB", **options).plan(jnp.ones(64))
    found = [json.loads(line) for line in call(capsys, "ls", "--json")[1].splitlines()]
    assert {row["about"]["options"] for row in found} == {"default", "numerics='exact'"}
    assert all(row["searches"]["jax.jit"] >= 1 <= row["searches"]["analytic"] for row in found)
    options = {option for row in found for option in row["compile_options"]}
    assert any(option.startswith("xla_cpu_experimental_ynn_fusion_type=") for option in options)
    out = call(capsys, "ls")[1]
    assert "numerics='exact'" in out and "1 jax.jit" in out and "1 o1" in out
    assert all(f": {option}\n" in out for option in options)


@pytest.mark.parametrize(("run_s", "shown"), [((0.25, 0.5), 2 * MIB), ((0.5, 0.25), MIB), ((None, None), MIB)])
def test_what_is_compiled_is_that_of_the_best_run(tmp_path, run_s, shown):
    store = RecordStore(tmp_path)
    for seconds, compiled in zip(run_s, (2 * MIB, MIB), strict=True):
        store.append(record(key=P, run_s=seconds, compiled_bytes=compiled, limit_bytes=4 * MIB))
    (row,) = rows(store.read().records)
    assert row.compiled_bytes == shown
