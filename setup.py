"""Lists exla's packages; everything else about the distribution is in pyproject.toml.

Four top-level folders make one distribution, so that no generic name lands in site-packages: `exla` is
itself, and `cost_model`, `datasets` and `training` are installed as `exla.cost_model`, `exla.datasets` and
`exla.training` (the mapping is `package-dir` in pyproject.toml). setuptools finds packages by itself only
where the folder's path spells the package's name, so they are found here. A folder that does not exist adds
nothing.
"""

from setuptools import find_packages, setup

PLACED_IN_EXLA = ("cost_model", "datasets", "training")

setup(
    packages=find_packages(include=["exla", "exla.*"])
    + [f"exla.{name}" for folder in PLACED_IN_EXLA for name in find_packages(include=[folder, f"{folder}.*"])]
)
