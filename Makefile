# Everything a person does with kvcast. `make help` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
# Tests start hundreds of Python processes: without bytecode each would compile again all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Processes that share the tests; each runs whole testbeds, so more than cores gain nothing.
JOBS ?= 2
PARALLEL := -n $(JOBS) --dist worksteal
# Compiled switch programs are cached here, so that a clean clone starts clean.
export XDG_CACHE_HOME ?= $(CURDIR)/build/cache

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9_-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: help setup system lint test unit test-long roce test-roce test-vllm demo demo-vllm bench wire rpc p4runtime-stubs p4 clean

$(VENV)/.installed: pyproject.toml tools/setup_python.sh
	tools/setup_python.sh $(VENV)
	@touch $@

system: ## Debian packages the testbed needs (asks for nothing; needs root)
	tools/setup_system.sh

# p4runtime-shell pins protobuf below 3.21, so the operator's console lives in an environment of its own.
.venv-p4rt-shell/.installed:
	tools/setup_p4runtime_shell.sh .venv-p4rt-shell
	@touch $@

# vLLM brings a torch and packages of its own, so its engines live in an environment of their own, too.
.venv-vllm/.installed: pyproject.toml tools/setup_vllm.sh
	tools/setup_vllm.sh .venv-vllm
	@touch $@

setup: system $(VENV)/.installed ## everything needed to run

lint: $(VENV)/.installed ## ruff, mypy --strict, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy kvproto p4switch controlplane hostagent bmv2_testbed kvcast planner tools
	$(VENV)/bin/lint-imports --no-logo

test: setup .venv-p4rt-shell/.installed lint ## everything that can run on this machine, under ten minutes
	$(RUN) $(PY) -m pytest $(PARALLEL) -m "not long and not roce and not enters_namespace"
	$(RUN) $(PY) -m pytest -m "enters_namespace and not long"

unit: $(VENV)/.installed ## only the tests that need neither root nor namespaces
	$(RUN) $(PY) -m pytest $(PARALLEL) -m "not long and not root" tests/unit tests/contracts tests/sim

roce: $(VENV)/.installed ## packages and the image for guests with soft-RoCE (needs root for the packages)
	PYTHON=$(CURDIR)/$(PY) PYTHONPATH=$(CURDIR) tools/setup_roce.sh

test-roce: setup roce ## the RDMA transport in guests with soft-RoCE, in software emulation
	$(RUN) $(PY) -m pytest -m roce tests/roce

test-long: setup ## sanitizers and soak tests
	$(RUN) $(PY) -m pytest -m long

test-vllm: system .venv-vllm/.installed ## real vLLM engines on the pool, on the CPU
	PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" .venv-vllm/bin/python -m pytest -m "not long" tests/vllm

demo: setup ## watch it work: incast in all modes, then real traces; ends in a table and a picture
	$(RUN) $(PY) -m kvcast.cli demo

demo-vllm: system .venv-vllm/.installed ## two vLLM engines share a document; one warms four at once by a cast
	PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" .venv-vllm/bin/python -m kvcast.cli demo-vllm

bench: setup ## the incast benchmark in all modes
	$(RUN) $(PY) -m kvcast.cli bench incast --mode all --json out/incast.json

p4runtime-stubs: $(VENV)/.installed ## regenerate the type stubs of p4switch/proto
	$(PY) tools/generate_p4runtime_stubs.py

p4: $(VENV)/.installed ## check the data plane with p4switch's compiler and p4c's, and how much of a Tofino it needs
	tools/check_p4.sh $(VENV)/bin/kvcast-switch $(PY)

wire: $(VENV)/.installed ## regenerate kvproto/wire from p4/include/headers.p4
	$(PY) tools/generate_wire.py

rpc: $(VENV)/.installed ## regenerate kvproto/rpc from control.proto
	$(PY) tools/generate_rpc.py

clean: ## remove what was built
	rm -rf build out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
