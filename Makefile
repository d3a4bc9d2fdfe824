# Every target says in its ## comment what it does; `make help` prints them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Our modules are compiled once, not at each of a thousand starts of a daemon.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.stamp
PYTEST := $(BIN)/pytest
PYTEST_ARGS ?=
SEEDS ?= 50
MINUTES ?= 30
SEED ?= 1

# PROOF:PACKAGE, see tools/debian_packages.sh.
TEST_PACKAGES := cc:gcc /usr/include/stdio.h:libc6-dev promtool:prometheus amtool:prometheus-alertmanager /usr/sbin/nginx:nginx \
    chromium:chromium /usr/share/fonts/truetype/dejavu:fonts-dejavu-core runsv:runit s6-supervise:s6 shellcheck:shellcheck \
    setpriv:util-linux unshare:util-linux mount:mount useradd:passwd

PEER_PACKAGES := monit:monit s6-svscan:s6 runsvdir:runit curl:curl pkill:procps flock:util-linux \
    prometheus-node-exporter:prometheus-node-exporter

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(STAMP) ## Build .venv from requirements.lock (PYTHON=python3.13 chooses the interpreter)

$(STAMP): requirements.lock pyproject.toml tools/venv.sh
	@tools/venv.sh $@

.PHONY: run
run: $(STAMP) ## Supervise `vllm serve MODEL` where MODEL, vllm and a GPU are there, else the simulator
	@if [ -n "$$MODEL" ] && command -v vllm >/dev/null && nvidia-smi -L >/dev/null 2>&1; then \
	    exec $(BIN)/vllm-watchdog run -- vllm serve "$$MODEL"; \
	else \
	    exec $(BIN)/vllm-watchdog run --simulate; \
	fi

.PHONY: test
test: $(STAMP) ## Run all tests but those that need vLLM or a GPU (PYTEST_ARGS="-k word" narrows)
	@tools/debian_packages.sh $(TEST_PACKAGES)
	$(PYTEST) -n 4 --dist loadgroup --ignore=tests/e2e --ignore=tests/gpu \
	    --ignore=tests/process/test_chaos.py $(PYTEST_ARGS)

.PHONY: laws
laws: $(STAMP) ## Run the laws, and 50 weeks of virtual time with random faults (SEEDS=50; half an hour)
	$(PYTEST) -n 2 tests/laws $(PYTEST_ARGS)
	$(BIN)/python -m tests.laws.weeks $(SEEDS)

.PHONY: test-vllm
test-vllm: $(STAMP) ## Run tests/e2e on the real vLLM, CPU build (3 minutes and 4 GB the first time)
	@vllm=$$(tools/vllm_env.sh) && \
	    VLLM_WATCHDOG_TEST_PYTHON="$$vllm/bin/python" \
	    VLLM_WATCHDOG_TEST_MODEL="$$vllm/tiny-model" \
	    $(PYTEST) tests/e2e -m vllm $(PYTEST_ARGS)

.PHONY: test-gpu
test-gpu: $(STAMP) ## Run what needs a real NVIDIA GPU: it causes an Xid 31, and changes no setting
	$(PYTEST) -s -v tests/gpu tests/contract/test_nvml.py -m gpu $(PYTEST_ARGS)

.PHONY: lint
lint: $(STAMP) ## Check style, format, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## Format the tree and apply the safe fixes
	$(BIN)/ruff check --fix-only --exit-zero
	$(BIN)/ruff format

.PHONY: bench
bench: $(STAMP) ## Measure what is promised in numbers, and what others need for the same (half an hour; nothing is asserted)
	@tools/debian_packages.sh $(PEER_PACKAGES)
	$(BIN)/python -m tests.perf.bench
	$(BIN)/python -m tests.perf.growth
	$(BIN)/python -m tests.perf.peers

.PHONY: chaos
chaos: $(STAMP) ## Random faults for half an hour, with invariants checked all along (MINUTES=30 SEED=1)
	$(PYTEST) tests/process/test_chaos.py
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED)

.PHONY: drill
drill: $(STAMP) ## Game day on the simulated engine: inject faults, time what is done, print the table
	$(BIN)/vllm-watchdog drill --simulate

.PHONY: screenshots
screenshots: $(STAMP) ## Draw the pictures of the status page in docs/ anew (needs Chromium)
	@tools/debian_packages.sh chromium:chromium
	$(BIN)/python -m tools.screenshots

.PHONY: lock
lock: ## Resolve pyproject.toml into requirements.lock, for all supported Pythons and architectures
	@tools/lock.sh

.PHONY: clean
clean: ## Remove .venv and all caches in the tree
	rm -rf .venv .venv.lock .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
