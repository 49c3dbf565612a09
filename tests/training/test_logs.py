"""The log: a line at once on disk, none twice after a run went on, none of a process that is not the first."""

import json

from exla.training.logs import LOG, Logs, read_log


def write(folder, steps, **options):
    with Logs(folder, steps=9, resumed_at=0, **options) as logs:
        for step in steps:
            logs.write({"step": step, "loss": step / 3, "kendall_tau": None})
            logs.advance()
            assert options or read_log(folder / LOG)[-1]["step"] == step  # before it is closed


def test_lines_are_flushed_and_beyond_the_resumed_step_dropped(tmp_path):
    write(tmp_path, [2, 4, 6])
    with open(tmp_path / LOG, "a") as log:
        log.write('{"step": 8, "loss')
    with Logs(tmp_path, steps=9, resumed_at=4) as logs:
        logs.write({"step": 6, "loss": 0.25})
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(2, 2 / 3), (4, 4 / 3), (6, 0.25)]


def test_a_run_that_begins_again_has_an_empty_log(tmp_path):
    write(tmp_path, [2, 4])
    with Logs(tmp_path, steps=9, resumed_at=0):
        assert read_log(tmp_path / LOG) == []


def test_other_processes_write_nothing(tmp_path, capsys):
    write(tmp_path, [2], quiet=True)
    assert not any(tmp_path.iterdir()) and capsys.readouterr() == ("", "")
