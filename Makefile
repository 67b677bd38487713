# `make demo` and `make test` need Python 3.11 to 3.13, pip and make; they set up the rest.
#
#   LAUNCHER_VENV   the virtual environment to use (made when missing); default: .venv
#   PYTHON          the interpreter it is made with; default: python3

PYTHON ?= python3
LAUNCHER_VENV ?= .venv
SEED := $(or $(SEED),$(shell date +%s))
INSTALLED := $(LAUNCHER_VENV)/.installed
RUN := "$(LAUNCHER_VENV)/bin/python"

# An inherited wish not to write bytecode would double the start of every process.
unexport PYTHONDONTWRITEBYTECODE
# Nothing of another environment may shadow this one's packages.
unexport PYTHONPATH
unexport PYTHONHOME

.PHONY: demo test check e2e bench stress clean

demo: $(INSTALLED)
	@$(RUN) -m launcher cluster=v6e-16 mode=jax workload=basic

test: check
	@$(RUN) -m pytest -q

check: $(INSTALLED)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

e2e: $(INSTALLED)
	@$(RUN) -m pytest -q -m e2e tests/e2e

bench: $(INSTALLED)
	@$(RUN) benchmarks/launch.py
	@$(RUN) benchmarks/recovery.py
	@$(RUN) benchmarks/calls.py

# `make stress SEED=…` draws the same sequences of launchers, faults and deaths again.
stress: $(INSTALLED)
	@echo "seed $(SEED)"
	@$(RUN) -m pytest -q -m stress --hypothesis-seed=$(SEED)

clean:
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "The launcher needs Python 3.11 to 3.13, and '$(PYTHON)' is not that." \
	       "Name one that is: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module (Debian, Ubuntu: apt install python3-venv)." >&2; \
	  exit 1; }
	@echo "Installing into $(LAUNCHER_VENV): 110 packages, 1.3 GB. This takes one to six minutes ..."
	@$(PYTHON) -m venv "$(LAUNCHER_VENV)"
	@$(RUN) -m pip install -qq --disable-pip-version-check --compile \
	  --constraint constraints.txt --editable '.[dev]'
	@$(RUN) -m compileall -q launcher
	@touch "$@"
	@echo "Installed. To use it anywhere: source $(LAUNCHER_VENV)/bin/activate"
