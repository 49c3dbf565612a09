"""A campaign on a Ray cluster: nodes of one kind of device share the instances, and a node may die.

    run_on_ray(Path("runs/all"), campaign, address="auto")

Each node measures one instance at a time, since programs that run beside one another take longer. Before it begins, a
node is asked what device it has; every kind of device has a folder of its own below `out` (`Folder`), with all
instances, and its nodes divide them. Records are sent to this process's machine as they are made and are on disk before
the next one; a node that dies has lost at most the candidate that it was at, and its instance goes to another node of
its kind, which begins with what is recorded. `exla` must be installed on every node.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exla.datasets.profiling.campaign import Campaign, from_dict
from exla.datasets.profiling.run import Finished, Folder, Progress, folder_name, measure_instance
from exla.errors import ExlaError, MissingExtraError
from exla.search.shards import append_lines, locked

LOOK_S = 2.0
"""How often nodes that joined or left are looked for."""
MOST_DEATHS = 3
"""Nodes that may die at one instance before it is given up."""


def run_on_ray(
    out: Path,
    campaign: Campaign,
    *,
    address: str = "auto",
    say: Callable[[str], None] = print,
    seconds: float = float("inf"),
) -> int:
    """Measure what is not finished, on all nodes of a cluster.

    Args:
      out: where; a folder for each kind of device.
      campaign: what.
      address: of the cluster.
      say: told a line after each instance.
      seconds: after which no further instance begins.

    Returns:
      How many instances are left, over all kinds.

    Raises:
      MissingExtraError: without Ray.
      ExlaError: if there is no cluster at the address, or it has no node that can be asked.
      OptionError: if another campaign, or another run, is in a folder.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("A campaign on Ray", "ray", "campaign") from error

    if not ray.is_initialized():
        try:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False)
        except (OSError, ValueError) as error:
            raise ExlaError(f"no Ray cluster at {address!r}: {error}. Start one with `ray start --head`") from error
    return _Driver(ray, out, campaign, say, seconds).run()


def _check_reachable(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


class _Driver:
    """Hands instances to nodes, and takes what they find."""

    def __init__(self, ray: Any, out: Path, campaign: Campaign, say: Callable[[str], None], seconds: float) -> None:
        self.ray, self.out, self.campaign, self.say = ray, out, campaign, say
        self.end = time.monotonic() + seconds
        self.kinds: dict[str, str | None] = {}
        self.folders: dict[str, Folder] = {}
        self.todo: dict[str, list[Any]] = {}
        self.deaths: dict[tuple[str, str], int] = {}
        self.running: dict[Any, tuple[str, str, Any]] = {}
        self.progress: dict[str, Progress] = {}
        self.collector = ray.remote(_Collector).options(num_cpus=0, **self._on(self._own_node())).remote(str(out))

    def run(self) -> int:
        """Until nothing is left, or the time is up."""
        while True:
            self._look()
            self._hand_out()
            if not self.running:
                if not self.folders:
                    raise ExlaError("no node of the cluster could say what device it has; is exla installed on them?")
                nobody = not any(self.todo[k] for k in self.todo) or time.monotonic() > self.end
                if nobody or not self._alive():
                    break
                time.sleep(LOOK_S)
                continue
            done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=LOOK_S)
            for reference in done:
                self._take(reference)
        return sum(len(left) for left in self.todo.values())

    def _own_node(self) -> str:
        return self.ray.get_runtime_context().get_node_id()

    def _on(self, node: str) -> dict[str, Any]:
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return {"scheduling_strategy": strategy}

    def _alive(self) -> list[str]:
        return [n["NodeID"] for n in self.ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]

    def _look(self) -> None:
        """Ask nodes that are new what they are."""
        new = [node for node in self._alive() if node not in self.kinds]
        asked = {node: self.ray.remote(_kind).options(num_cpus=0, **self._on(node)).remote(self.campaign.target)
                 for node in new}  # fmt: skip
        for node, reference in asked.items():
            try:
                kind = self.ray.get(reference, timeout=120)
            except Exception as error:
                self.say(f"node {node[:8]} is left out: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
                self.kinds[node] = None
                continue
            self.kinds[node] = kind
            if kind not in self.folders:
                folder = Folder.open(self.out / kind, self.campaign)
                folder.lock()
                self.folders[kind] = folder
                self.todo[kind], self.progress[kind] = folder.left()

    def _hand_out(self) -> None:
        if time.monotonic() > self.end:
            return
        busy = {node for node, _, _ in self.running.values()}
        for node in self._alive():
            kind = self.kinds.get(node)
            if node in busy or kind is None or not self.todo[kind]:
                continue
            instance = self.todo[kind].pop(0)
            task = self.ray.remote(_measure).options(num_cpus=1, max_retries=0, **self._on(node))
            reference = task.remote(asdict(self.campaign), instance.name, kind, self.collector)
            self.running[reference] = (node, kind, instance)

    def _take(self, reference: Any) -> None:
        node, kind, instance = self.running.pop(reference)
        try:
            finished = Finished(**self.ray.get(reference))
        except Exception as error:
            self._lost(node, kind, instance, error)
            return
        self.folders[kind].finish(finished)
        self.say(self.progress[kind].line(finished, f"{kind} "))

    def _lost(self, node: str, kind: str, instance: Any, error: Exception) -> None:
        """A node died: its instance goes to another one, or is given up."""
        deaths = self.deaths[kind, instance.name] = self.deaths.get((kind, instance.name), 0) + 1
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        self.say(f"{instance.name}: node {node[:8]} was lost ({reason})")
        if deaths < MOST_DEATHS:
            self.todo[kind].insert(0, instance)
            return
        given_up = Finished(instance=instance.name, status="failed", records=0, seconds=0.0, said=reason)
        self.folders[kind].finish(given_up)


class _Collector:
    """Keeps the records of all nodes in the driver's folders; an actor on the driver's node."""

    def __init__(self, out: str) -> None:
        self.out = Path(out)

    def lines(self, kind: str, instance: str) -> list[str]:
        """What is recorded of an instance."""
        path = self.out / kind / "records" / f"{instance}.jsonl"
        return [line for line in path.read_text().split("\n") if line.strip()] if path.exists() else []

    def add(self, kind: str, instance: str, lines: list[str]) -> int:
        """Add those that are not there; on disk when this returns."""
        path = self.out / kind / "records" / f"{instance}.jsonl"
        there = set(self.lines(kind, instance))
        new = [line for line in lines if line not in there]
        if new:
            with locked(path):
                append_lines(path, new)
        return len(new)


def _kind(target: str) -> str:
    """The kind of device that a target is on this node, as a folder is called."""
    from exla.targets.base import find_target

    return folder_name(target, find_target(target).fingerprint().get("device", ""))


def _measure(campaign: dict[str, Any], instance: str, kind: str, collector: Any) -> dict[str, Any]:
    """On a node: measure an instance, and send each record as it is made."""
    import tempfile

    import ray

    made = from_dict(json.loads(json.dumps(campaign)))
    wanted = next(i for i in made.instances() if i.name == instance)
    with tempfile.TemporaryDirectory(prefix="exla-") as name:
        path = Path(name) / f"{instance}.jsonl"
        before = ray.get(collector.lines.remote(kind, instance))
        path.write_text("".join(f"{line}\n" for line in before))
        sent = len(path.read_bytes())

        def send() -> None:
            nonlocal sent
            data = path.read_bytes()[sent:]
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                ray.get(collector.add.remote(kind, instance, whole.decode().splitlines()))
                sent += len(whole)

        finished = measure_instance(made, wanted, path, each=send)
        send()
    return asdict(finished)
