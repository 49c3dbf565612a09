"""Where calls run: `on_`, `mapped_over_` and `shared_over_eight_devices.py`, in a process that has eight."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ON, MAPPED, SHARED = "on_eight_devices.py", "mapped_over_eight_devices.py", "shared_over_eight_devices.py"


@pytest.mark.parametrize(
    ("cases", "which"),
    [
        (ON, "not sweep"),
        pytest.param(ON, "sweep", marks=pytest.mark.sweep),
        (MAPPED, "not sweep"),
        (SHARED, "not sweep"),
    ],
)
def test_on_eight_devices(cases, which):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    child = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            which,
            str(Path(__file__).with_name(cases)),
        ],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout[-8000:]
