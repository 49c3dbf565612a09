"""Campaigns are run, killed, gone on with and exported; what is recorded is right and nothing is lost."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import filelock
import jax
import numpy as np
import pytest

from exla.cli import main
from exla.datasets.profiling import prepare as preparing
from exla.datasets.profiling import run as running
from exla.datasets.profiling import worker
from exla.datasets.profiling.campaign import Campaign
from exla.datasets.profiling.export import export, times
from exla.datasets.profiling.prepare import Settled, prepare
from exla.datasets.profiling.run import Finished, Folder, measure_instance, run_campaign
from exla.datasets.profiling.worker import recorded
from exla.datasets.tpugraphs_adapter import read
from exla.errors import OptionError
from exla.search.record import Record
from exla.training.config import Config, DataConfig, HeldOutConfig
from exla.training.data import open_split

SMALL = Campaign(name="small", zoo=("chamfer",), megabytes=(1.0,), shares=(0.3,), candidates=5, rounds_s=0.2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one instance, all of it measured."""
    folder = Folder.open(tmp_path_factory.mktemp("campaign"), SMALL)
    said = []
    assert run_campaign(folder, say=said.append) == 0
    folder.unlock()
    assert len(said) == 1 and "chamfer-1MB-0.3: ok" in said[0]
    return folder


def lines_of(folder):
    return folder.records_of("chamfer-1MB-0.3").read_text().splitlines()


def test_the_default_is_first_and_each_candidate_is_there_once(finished):
    records = [Record.from_line(line) for line in lines_of(finished)]
    assert records[0].is_default and records[0].run_s is not None
    first = [r for r in records if r.extra.get("preliminary") or r.status != "ok"]
    decisions = [json.dumps(r.decisions, sort_keys=True) for r in first]
    assert len(set(decisions)) == len(decisions) >= 5
    assert all(r.extra["family"] == "chamfer" and r.extra["label"] == "wall_clock" for r in records)
    assert all((r.run_s is not None) == (r.status == "ok") for r in records)
    final = [r for r in records if r.status == "ok" and not r.extra.get("preliminary")]
    timed = {json.dumps(r.decisions, sort_keys=True) for r in records if r.extra.get("preliminary")}
    assert {json.dumps(r.decisions, sort_keys=True) for r in final} >= timed
    assert any(len(r.extra.get("halves", ())) == 2 for r in final), "the noise is measured"


def test_what_was_measured_stays_good_when_a_planner_projects_otherwise(finished, tmp_path, monkeypatch):
    """The size and the limit of records are used, not those that would be found today."""
    (instance,) = SMALL.instances()
    records = recorded(finished.records_of(instance.name))
    then = prepare(instance, "cpu", Settled.by(records))
    real = preparing.project
    grown = lambda *a, **kw: replace(real(*a, **kw), bytes=2 * real(*a, **kw).bytes)  # noqa: E731
    monkeypatch.setattr(preparing, "project", grown)
    today = prepare(instance, "cpu")
    assert today.size < then.size == records[0].extra["size"]
    assert then.attempt.limit_bytes == records[0].limit_bytes != today.attempt.limit_bytes
    exported = export([Folder.open(finished.path)], tmp_path, say=pytest.fail)
    assert not exported.left_out.get("replay miss") and sum(exported.instances.values()) == 1
    # A run that was stopped goes on at the size at which it began.
    path = tmp_path / "half.jsonl"
    path.write_text("\n".join(lines_of(finished)[:2]) + "\n")
    worker.measure(SMALL, instance, path, lambda said: None)
    assert {r.extra["size"] for r in recorded(path)} == {then.size}


@pytest.mark.parametrize("bad", [{"size": "7"}, {"size": -7}, {"size": True}, {}])
def test_a_record_that_names_no_size_settles_nothing(bad, finished):
    record = recorded(finished.records_of("chamfer-1MB-0.3"))[0]
    assert Settled.by([record]) == Settled(size=record.extra["size"], limit_bytes=record.limit_bytes)
    assert Settled.by([replace(record, extra=bad)]) is None
    assert Settled.by([replace(record, limit_bytes=None)]) is None


def test_what_is_finished_is_not_done_again(finished):
    before, again = lines_of(finished), Folder.open(finished.path)
    assert run_campaign(again, say=pytest.fail) == 0
    again.unlock()
    assert lines_of(finished) == before


def test_a_process_that_dies_costs_its_candidate_and_the_rest_is_measured(tmp_path, monkeypatch):
    instance = next(SMALL.instances())
    path = tmp_path / "records.jsonl"
    killed = []

    def kill_once(line, read=running._message):
        """When the second candidate has begun, kill the process that is at it; stopped, it can record nothing."""
        message = read(line)
        if killed or not message.get("begin") or len(recorded(path)) != 2:
            return message
        children = subprocess.run(
            ["pgrep", "-P", str(os.getpid()), "-f", "profiling.worker"], capture_output=True, text=True
        )
        for pid in map(int, children.stdout.split()):
            os.kill(pid, signal.SIGSTOP)
            has_ended = message["begin"] in [list(r.decisions) for r in recorded(path)]
            if not has_ended:
                killed.append(pid)
            os.kill(pid, signal.SIGCONT if has_ended else signal.SIGKILL)
        return message

    monkeypatch.setattr(running, "_message", kill_once)
    ended = measure_instance(SMALL, instance, path)
    records = recorded(path)
    dead = [r for r in records if r.status == "oom"]
    assert killed and ended.status == "ok" and len(dead) == 1
    once = [json.dumps(r.decisions, sort_keys=True) for r in records if r.extra.get("preliminary") or r.status != "ok"]
    assert len(set(once)) == len(once) >= 5, "nothing is measured twice, and what comes after is measured"


def test_a_process_that_dies_between_two_candidates_costs_none(finished, tmp_path, monkeypatch):
    """It is told by its record that a candidate has ended: what begins next is said a moment later."""
    instance = next(SMALL.instances())
    path = tmp_path / "records.jsonl"
    path.write_text(finished.records_of(instance.name).read_text())
    known = recorded(path)
    ends = iter([("oom", list(known[1].decisions), "killed"), ("ok", None, "")])
    monkeypatch.setattr(running, "_worker", lambda *_: next(ends))
    ended = measure_instance(SMALL, instance, path)
    assert (ended.status, ended.records) == ("ok", len(known))
    assert recorded(path) == known
    assert next(ends, None) is None


def test_instances_side_by_side_are_prepared_at_the_same_time(tmp_path, monkeypatch):
    both = replace(SMALL, zoo=("chamfer", "rbf_product", "matern_product"), candidates=3)
    heard, telling, real = [], threading.Lock(), running._message

    def note(line):
        message = real(line)
        if "runs" in message:
            with telling:
                heard.append((threading.get_ident(), message["runs"], time.monotonic()))
        return message

    monkeypatch.setattr(running, "_message", note)
    folder = Folder.open(tmp_path, both)
    assert run_campaign(folder, jobs=3, say=lambda line: None) == 0
    folder.unlock()
    done = folder.finished()
    assert len(done) == 3 and all(one.status == "ok" and one.records >= 4 for one in done.values())
    spans = [  # of preparing and compiling, which overlap: from the first word of a process to its last
        (min(t for who, _, t in heard if who == one), max(t for who, _, t in heard if who == one))
        for one in {who for who, _, _ in heard}
    ]
    assert len(spans) == 3 and max(begin for begin, _ in spans) < min(end for _, end in spans)


def test_an_interrupt_ends_what_is_side_by_side_and_is_no_finding(tmp_path):
    (tmp_path / "c.toml").write_text(
        'name = "k"\nzoo = ["chamfer", "rbf_product", "matern_product"]\nmegabytes = [1]\nshares = [0.3]\n'
        "candidates = 5\nrounds_s = 60\n"
    )
    out = tmp_path / "run"
    command = [sys.executable, "-m", "exla.cli", "profile", "run", str(tmp_path / "c.toml"), "-o", str(out)]
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    end = time.monotonic() + 120

    def found():
        return [recorded(p) for p in (out / "records").glob("*.jsonl")] if out.exists() else []

    while time.monotonic() < end and process.poll() is None and sum(map(len, found())) < 4:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    assert process.wait(timeout=30) != 0 and not (out / "instances.jsonl").exists()
    assert {r.status for records in found() for r in records} <= {"ok", "over_limit"}


def test_no_jobs_are_no_campaign(tmp_path):
    with pytest.raises(OptionError, match="jobs = 0"):
        run_campaign(Folder.open(tmp_path, SMALL), jobs=0)


def test_the_clock_is_held_while_a_program_runs_and_at_no_other_time(tmp_path):
    clock, said = tmp_path / "clock", []
    other = filelock.FileLock(clock)

    def say(message):
        if "runs" in message:
            said.append(message["runs"])
            if message["runs"]:
                with pytest.raises(filelock.Timeout):
                    other.acquire(timeout=0)
            else:
                other.acquire(timeout=0)
                other.release()

    worker.measure(SMALL, next(SMALL.instances()), tmp_path / "records.jsonl", say, clock)
    assert True in said and said[-1] is False


def test_what_waits_for_the_clock_says_so_and_what_runs_too_long_is_given_up(tmp_path, monkeypatch):
    instance, path, clock = next(SMALL.instances()), tmp_path / "records.jsonl", tmp_path / "clock"
    waits = replace(SMALL, run_s=1e-4)
    ended = measure_instance(waits, instance, path, clock=clock)
    (record,) = recorded(path)
    assert ended.status == "failed" and record.status == "timeout" and record.is_default
    monkeypatch.setattr(worker, "HEARD_S", 0.05)
    said = []
    with filelock.FileLock(clock):
        waiting = worker._Clock(SMALL, prepare(instance, "cpu"), None, said.append, [], filelock.FileLock(clock))
        held = waiting.held()
        thread = threading.Thread(target=held.__enter__)
        thread.start()
        time.sleep(0.3)
        assert thread.is_alive() and said and not any(message["runs"] for message in said)
    thread.join(timeout=10)
    assert not thread.is_alive() and said[-1] == {"runs": True}
    held.__exit__(None, None, None)


def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path, capsys):
    (tmp_path / "c.toml").write_text(
        'name = "k"\nzoo = ["chamfer"]\nmegabytes = [1]\nshares = [0.3]\ncandidates = 5\nrounds_s = 0.2\n'
    )
    out = tmp_path / "run"
    command = [sys.executable, "-m", "exla.cli", "profile", "run", str(tmp_path / "c.toml"), "-o", str(out)]
    path = out / "records" / "chamfer-1MB-0.3.jsonl"
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None and len(recorded(path)) < 2:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = path.read_text().splitlines()
    assert len(before) >= 2 and not (out / "instances.jsonl").exists()
    with open(path, "a") as file:
        file.write(before[0][:40])  # killed in the middle of a line
    assert main(["profile", "run", str(tmp_path / "c.toml"), "-o", str(out)]) == 0
    records = recorded(path)
    once = [json.dumps(r.decisions, sort_keys=True) for r in records if r.extra.get("preliminary") or r.status != "ok"]
    assert len(set(once)) == len(once) >= 5
    assert [r.to_line() for r in records[: len(before)]] == before
    capsys.readouterr()
    assert main(["profile", "run", str(tmp_path / "c.toml"), "-o", str(out)]) == 0
    assert capsys.readouterr().out == "all programs of k are measured\n"


@pytest.mark.parametrize(
    ("line", "said"), [("megabyte = [1]", "did you mean"), ('own = ["no_such_module:TABLE"]', "no_such_module")]
)
def test_a_campaign_that_is_not_understood_begins_no_folder(line, said, tmp_path, capsys):
    (tmp_path / "c.toml").write_text(f'name = "k"\n{line}\n')
    assert main(["profile", "run", str(tmp_path / "c.toml"), "-o", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_values_are_compared_with_the_plain_program_under_any_option_set():
    """A library that is wrong under jax.jit's options makes no right candidate wrong."""
    prepared = prepare(next(SMALL.instances()), "cpu")
    clock = worker._Clock(SMALL, prepared, None, lambda said: None, [])
    right = worker._values(jax.jit(prepared.function)(*prepared.arguments))
    clock.truths = [[x + 1 for x in right]]
    error, different = clock.compared(right)
    assert clock._agrees(error, different) and len(clock.truths) > 1
    assert not clock._agrees(*clock.compared([x * 1.1 for x in right]))


def test_another_campaign_in_the_folder_is_refused(finished):
    with pytest.raises(OptionError, match="candidates differ"):
        Folder.open(finished.path, Campaign(**{**SMALL.__dict__, "candidates": 6}))
    with pytest.raises(OptionError, match="holds no campaign"):
        Folder.open(finished.path / "nowhere")
    with pytest.raises(OptionError, match=r"campaign\.json is a file"):
        Folder.open(finished.path / "campaign.json", SMALL)


def test_two_runs_in_one_folder_do_not_meet(tmp_path):
    one, other = Folder.open(tmp_path, SMALL), Folder.open(tmp_path, SMALL)
    one.lock()
    refused = []

    def second():
        with pytest.raises(OptionError, match="another run"):
            other.lock()
        refused.append(True)

    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    assert refused


def test_an_instance_that_cannot_even_begin_is_failed_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "MOST_CRASHES", 2)
    bad = Campaign(**{**SMALL.__dict__, "target": "tpu:v9"})
    ended = measure_instance(bad, next(bad.instances()), tmp_path / "r.jsonl")
    assert ended.status == "failed" and "tpu:v9" in ended.said


def test_a_line_that_was_cut_off_is_no_finished_instance(tmp_path):
    folder = Folder.open(tmp_path, SMALL)
    folder.finish(Finished(instance="a", status="ok", records=3, seconds=1.0))
    with open(tmp_path / "instances.jsonl", "a") as file:
        file.write('{"instance": "b", "status"')
    assert set(folder.finished()) == {"a"}


def test_an_export_is_a_data_set_that_training_reads(finished, tmp_path):
    made = export([finished], tmp_path, say=pytest.fail)
    card = json.loads((made.folder / "card.json").read_text())
    (path,) = made.folder.rglob("*.npz")
    file = read(path)
    assert file.split is not None and file.split.meta["family"] == "chamfer"
    assert file.num_configs == sum(card["candidates_with_a_time"].values()) == len(file.split.decisions)
    assert card["label"] == "wall_clock"
    assert file.is_default.sum() == 1 and file.split.decisions[int(np.argmax(file.is_default))] == []
    last = {json.dumps(r.decisions, sort_keys=True): r.run_s for r in recorded(finished.records_of("chamfer-1MB-0.3"))}
    assert {name: round(run_s * 1e9) for name, run_s in last.items() if run_s is not None} == {
        json.dumps(decisions, sort_keys=True): int(runtime)
        for decisions, runtime in zip(file.split.decisions, file.runtime, strict=True)
    }
    assert np.isfinite(file.configs()).all() and file.configs().shape[1:] == (file.graph.num_config_nodes, 18)
    split = open_split(
        Config(data=DataConfig(files=(str(path),), cache=str(tmp_path)), held_out=HeldOutConfig(by="rows"))
    )
    assert split.train and split.held_out


def record(**changes):
    known = {"key": {}, "decisions": [], "status": "ok", "is_default": True, "strategy": "campaign", "seed": 0}
    return Record(**{**known, **changes})


def test_times_and_estimates_are_never_mixed():
    timed, estimated = record(run_s=1e-3), record(extra={"estimated_cycles": 5e5})
    unknown = record(extra={"estimated_cycles": 5e5, "unknown_trips": 1})
    partial = record(extra={"estimated_cycles": 5e5, "unknown_trips": 0, "unestimated": 2})
    failed = record(status="over_limit")
    kept, left = times([timed, estimated, failed], "wall_clock")
    assert [v for _, v in kept] == [1_000_000] and left == {"no time": 1, "over_limit": 1}
    kept, left = times([timed, estimated, unknown, partial], "tpu_estimate")
    reasons = ("no time", "a loop of unknown length", "work that the compiler does not estimate")
    assert [v for _, v in kept] == [500_000] and left == dict.fromkeys(reasons, 1)


def test_the_commands_say_how_far_it_is_and_export(finished, tmp_path, capsys):
    assert main(["profile", "status", str(finished.path)]) == 0
    said = capsys.readouterr().out
    assert "1 of 1 instances finished, 0 of them failed" in said
    final = {json.dumps(r.decisions, sort_keys=True) for r in map(Record.from_line, lines_of(finished)) if r.run_s}
    assert f"{len(final)} candidates with a time" in said
    assert main(["profile", "export", str(finished.path), "-o", str(tmp_path)]) == 0
    assert list(tmp_path.rglob("card.json"))
    assert main(["profile", "status", str(tmp_path)]) == 1
    assert "holds no campaign" in capsys.readouterr().err
    assert jax.default_backend() == "cpu"


def test_records_that_were_compressed_are_read_and_damaged_ones_counted(finished, tmp_path):
    folder = Folder.open(tmp_path, SMALL)
    lines = finished.records_of("chamfer-1MB-0.3").read_bytes()
    packed = gzip.compress(lines)
    (tmp_path / "records" / "a.jsonl.gz").write_bytes(packed)
    (tmp_path / "records" / "b.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "records" / "c.jsonl.gz").write_bytes(b"no gzip at all")
    (tmp_path / "records" / "d.jsonl.lock").write_bytes(b"")
    found = {name: (len(records), bad) for name, records, bad in folder.records()}
    assert found == {"a": (len(lines.splitlines()), 0), "b": (0, 1), "c": (0, 1)}
