"""Where calls run: `on_`, `mapped_over_`, `shared_over_` and `typed_over_eight_devices.py`, where there are eight."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ON, MAPPED = "on_eight_devices.py", "mapped_over_eight_devices.py"
SHARED, TYPED = "shared_over_eight_devices.py", "typed_over_eight_devices.py"


@pytest.mark.every_python  # which starts half of the cases each
@pytest.mark.parametrize(
    ("cases", "which"),
    [
        (ON, "not sweep"),
        pytest.param(ON, "sweep", marks=pytest.mark.sweep),
        (MAPPED, "not sweep"),
        (SHARED, "not sweep"),
        (TYPED, "not sweep"),
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
