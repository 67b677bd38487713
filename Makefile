# `make demo` and `make test` need Python 3.11 to 3.13, pip and make; they set up the rest.
#
#   LAUNCHER_VENV   the virtual environment to use (made when missing); default: .venv
#   PYTHON          the interpreter it is made with; default: python3

PYTHON ?= python3
LAUNCHER_VENV ?= .venv
SEED := $(or $(SEED),$(shell date +%s))
# What each needs beside the launcher, by extras of pyproject.toml, and how much that is in all.
FOR := $(LAUNCHER_VENV)/.for-
EXTRAS_demo := lm,digits,tune
SIZE_demo := 101 packages, 1.3 GB: one to six minutes
EXTRAS_check := dev
SIZE_check := 118 packages, 1.4 GB: one to six minutes
EXTRAS_test := dev,torch
SIZE_test := 158 packages, 8 GB, with PyTorch as it comes from PyPI: two to ten minutes
RUN := "$(LAUNCHER_VENV)/bin/python"

# An inherited wish not to write bytecode would double the start of every process.
unexport PYTHONDONTWRITEBYTECODE
# Nothing of another environment may shadow this one's packages.
unexport PYTHONPATH
unexport PYTHONHOME

.PHONY: demo test check e2e bench stress clean

demo: $(FOR)demo
	@$(RUN) -m launcher cluster=v6e-16 mode=jax workload=basic

test: check $(FOR)test
	@$(RUN) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

check: $(FOR)check
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

e2e: $(FOR)test
	@$(RUN) -m pytest -q -m "e2e and not stress" tests/e2e

bench: $(FOR)check
	@$(RUN) benchmarks/launch.py
	@$(RUN) benchmarks/recovery.py
	@$(RUN) benchmarks/calls.py
	@$(RUN) benchmarks/sweep.py

# `make stress SEED=…` draws the same sequences of launchers, faults and deaths again.
stress: $(FOR)test
	@echo "seed $(SEED)"
	@FAULT_SEED=$(SEED) $(RUN) -m pytest -q -m stress --hypothesis-seed=$(SEED)

clean:
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(FOR)%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "The launcher needs Python 3.11 to 3.13, and '$(PYTHON)' is not that." \
	       "Name one that is: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module (Debian, Ubuntu: apt install python3-venv)." >&2; \
	  exit 1; }
	@echo "Installing into $(LAUNCHER_VENV): $(SIZE_$*) ..."
	@$(PYTHON) -m venv "$(LAUNCHER_VENV)"
	@$(RUN) -m pip install -qq --disable-pip-version-check --compile \
	  --constraint constraints.txt --editable '.[$(EXTRAS_$*)]'
	@$(RUN) -m compileall -q launcher
	@touch "$@"
	@echo "Installed. To use it anywhere: source $(LAUNCHER_VENV)/bin/activate"
