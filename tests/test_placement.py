"""Where calls run: the tests of `on_eight_devices.py`, in a process that has eight."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("on_eight_devices.py")


@pytest.mark.parametrize("which", ["not sweep", pytest.param("sweep", marks=pytest.mark.sweep)])
def test_on_eight_devices(which):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(CASES)],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout[-8000:]
