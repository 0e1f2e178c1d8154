# Everything a newcomer needs; `make help` lists it.
SHELL := bash
.DEFAULT_GOAL := help

# vllm: the real model. sim: the simulated engine, a light installation without torch.
ENGINE ?= vllm
# The first Python that fits, unless one is named: make PYTHON=/usr/bin/python3.12 …
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo "$$p"; break; }; done)
BIN := .venv/bin
# Of chaos and kills: how many, and the seed of their order.
N ?= 30
SEED ?= 1
# Of a bill of materials: which set of packages.
SET ?= cpu
PATHS := schemas streams agents gpu_consumers billing_jobs deploy models benchmarks tests

ifeq ($(strip $(PYTHON)),)
$(error Sluice needs Python 3.11, 3.12 or 3.13, and none was found; name one with: make PYTHON=/path/to/python3 …)
endif
BOOTSTRAP := $(PYTHON) -m deploy.install.bootstrap

# The stack and its tests start Python many times: each start would compile every imported package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run demo test test-long test-unit check format bench bench-check chaos kills faults sbom audit lock clean

help: ## What can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Installs what is missing and starts everything; Ctrl-C stops it (ENGINE=sim: no torch)
	@$(BOOTSTRAP) --engine $(ENGINE)
	@exec $(BIN)/sluice up --engine $(ENGINE)

demo: ## The same, then a scripted tour that checks each of its steps, then stops
	@$(BOOTSTRAP) --engine $(ENGINE)
	@exec $(BIN)/python -m deploy.demo --engine $(ENGINE)

test: ## The tests, the end-to-end ones on the real stack; all but the long ones
	@$(BOOTSTRAP) --engine vllm --dev
	@$(BIN)/python -m tests.side_by_side

test-long: ## The tests that take their time, thirty faults among them
	@$(BOOTSTRAP) --engine vllm --dev
	@$(BIN)/python -m tests.side_by_side long

test-unit: ## Unit and contract tests only, without vLLM
	@$(BOOTSTRAP) --engine sim --dev
	@$(BIN)/pytest -m "not real_model and not long" tests/unit tests/contract

check: ## Lint, format, types, layering
	@$(BOOTSTRAP) --engine sim --dev --no-services
	$(BIN)/ruff check $(wildcard $(PATHS))
	$(BIN)/ruff format --check $(wildcard $(PATHS))
	$(BIN)/mypy $(wildcard $(PATHS))
	$(BIN)/lint-imports

format: ## Formats the code
	$(BIN)/ruff check --fix $(wildcard $(PATHS))
	$(BIN)/ruff format $(wildcard $(PATHS))

bench: ## Measures against the baselines, prints a table and JSON
	@$(BOOTSTRAP) --engine vllm --dev
	@$(BIN)/python -m benchmarks $(ARGS)

bench-check: ## Measures the shorter ones anew and says which ratios got worse (by hand; ARGS picks)
	@$(BOOTSTRAP) --engine vllm --dev
	@$(BIN)/python -m benchmarks check $(ARGS)

chaos: ## Kills, stops and freezes processes under traffic, N times, and judges the history (SEED picks the order)
	@$(BOOTSTRAP) --engine sim --dev
	@$(BIN)/python -m tests.chaos --faults $(N) --seed $(SEED) $(ARGS)

kills: ## Kills billing alone, N times, and compares what it bills with an oracle, beside naive ways to bill
	@$(BOOTSTRAP) --engine sim --dev
	@$(BIN)/python -m tests.billing_kills --kills $(N) --seed $(SEED) $(ARGS)

faults: ## The tests of faults, the large batch too, which takes half an hour
	@$(BOOTSTRAP) --engine vllm --dev
	@$(BIN)/pytest tests/faults

sbom: ## Writes what an installation may hold to .data/sbom.cdx.json (CycloneDX), held against its schema (SET picks)
	@$(PYTHON) -m deploy.install.sbom --set $(SET) --output .data/sbom.cdx.json --check

audit: ## Looks up known vulnerabilities of the locked packages, and says what could not be looked up (by hand)
	@$(PYTHON) -m deploy.install.audit $(ARGS)

lock: ## Re-resolves all dependencies into deploy/install/requirements/
	@$(BOOTSTRAP) --engine sim --no-services
	@deploy/install/requirements/lock.sh

clean: ## Removes state, caches and the environment
	rm -rf .data .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
