"""A campaign on a local Ray cluster of two nodes, one of which is killed in the middle."""

import json
import threading
import time

import pytest

from exla.datasets.profiling.campaign import Campaign
from exla.datasets.profiling.on_ray import run_on_ray
from exla.datasets.profiling.worker import recorded

ray = pytest.importorskip("ray", reason="needs ray: pip install 'exla[campaign]'")

CAMPAIGN = Campaign(
    name="ray", zoo=("chamfer", "kendall_tau"), megabytes=(1.0,), shares=(0.3,), candidates=4, rounds_s=0.2
)


@pytest.mark.sweep
def test_a_node_that_is_killed_loses_nothing_and_its_program_goes_to_another(tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    victim = cluster.add_node(num_cpus=1)
    said, seen = [], []

    def kill_when_it_has_begun():
        """Once both nodes have records, and neither is finished."""
        while time.monotonic() < end:
            files = list(tmp_path.rglob("records/*.jsonl"))
            counts = {path: len(recorded(path)) for path in files}
            if len(counts) == 2 and min(counts.values()) >= 1:
                seen.append({path: [r.to_line() for r in recorded(path)] for path in counts})
                cluster.remove_node(victim, allow_graceful=False)
                return
            time.sleep(0.05)

    end = time.monotonic() + 300
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        killer = threading.Thread(target=kill_when_it_has_begun)
        killer.start()
        left = run_on_ray(tmp_path, CAMPAIGN, address=cluster.address, say=said.append)
        killer.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert seen and left == 0 and any("was lost" in line for line in said)
    (finished,) = tmp_path.rglob("instances.jsonl")
    assert {json.loads(line)["status"] for line in finished.read_text().splitlines()} == {"ok"}
    for path, lines in seen[0].items():
        after = recorded(path)
        assert [r.to_line() for r in after[: len(lines)]] == lines, "what was recorded is still there"
        once = [json.dumps(r.decisions, sort_keys=True) for r in after if r.extra.get("preliminary")]
        assert len(once) == len(set(once)) >= 4


def test_an_address_without_a_cluster_is_an_error_that_says_what_to_do(tmp_path):
    from exla.errors import ExlaError

    with pytest.raises(ExlaError, match="ray start"):
        run_on_ray(tmp_path, CAMPAIGN, address="127.0.0.1:1")
