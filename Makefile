# make demo    run exla on real data: 40,000 places under 512 MiB
# make test    lint, types, tests
# make clean   remove the environment and everything that was built
# PYTHON=...   the Python (3.11 or later) that .venv is made from

VENV := .venv
WORKERS ?= 2

# The first of these that runs, is recent enough and can make an environment. Each is started once: a name on the
# path may be a launcher for a Python that is not installed.
candidates := $(or $(PYTHON),python3.11 python3.12 python3)
probe := import sys, venv, ensurepip; assert sys.version_info >= (3, 11); print("{}.{}.{}".format(*sys.version_info))
found := $(shell for python in $(candidates); do \
	version=$$("$$python" -c '$(probe)' 2>/dev/null) && { echo "$$python $$version"; break; }; done)
python := $(word 1,$(found))
version := $(word 2,$(found))
minor := $(word 2,$(subst ., ,$(version)))

# A Python later than the last one with constraints of its own uses those of the last.
constraints := $(or $(wildcard constraints/py3$(minor).txt),$(lastword $(sort $(wildcard constraints/py3*.txt))))
ready := $(VENV)/ready-$(or $(version),none)
compilers := $(VENV)/compilers-$(or $(version),none)
run := $(VENV)/bin/python

.PHONY: demo test clean
.DELETE_ON_ERROR:

demo: $(ready)
	@$(run) examples/demo.py $(DEMO)

test: $(ready) $(compilers)
	@$(run) -m ruff check .
	@$(run) -m mypy
	@$(run) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Made anew whenever the dependencies, the constraints or the Python change.
$(ready): pyproject.toml exla/version.py $(constraints)
	@test -n "$(python)" || { echo "error: none of '$(candidates)' is a Python 3.11 or later with the venv module;" \
		"install one, or name it: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(VENV) with Python $(version) and $(constraints) (once; a few minutes)"
	@rm -rf $(VENV)
	@"$(python)" -m venv $(VENV)
	@$(run) -m pip install -qq --no-compile --disable-pip-version-check -c $(constraints) -e '.[dev,demo]'
	@touch $@

# The compilers of TPUs and GPUs, which need neither; the tests compile for both.
$(compilers): $(ready)
	@$(run) -m pip install -qq --no-compile --disable-pip-version-check -c $(constraints) -e '.[dev,demo,compilers]'
	@touch $@
