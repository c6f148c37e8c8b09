# One word per thing a person wants to do; `make` alone lists them.
#
# Every path is relative, because make cannot handle a checkout whose path has a space. Recipes are single
# commands: make then starts the program itself, without a shell between them that could swallow a Ctrl-C.
# The stamp carries a checksum of the checkout's path: an environment that was copied or moved is made anew.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
READY := .venv/ready-$(shell pwd | cksum | cut -d' ' -f1)
RUN := .venv/bin/python
ARGS ?=

# What the caller's shell says about Python must not leak into ours.
unexport PYTHONPATH PYTHONHOME
# Progress arrives when it is made, also in a pipe.
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test e2e check matrix loadtest testbed images reference constraints clean need-cc

help: ## this list
	@echo "make demo starts a real control plane with sixteen simulated GPU nodes and shows nodegauge at work."
	@echo
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/\1 \2/p' Makefile | while read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done
	@echo
	@echo "The testbed while it is up: .venv/bin/python -m testbed status | nodes | fault NODE NAME | heal NODE | down"

demo: $(READY) need-cc ## control plane, helm install, sixteen simulated GPU nodes, labels, taints, jobs placed by them; all gone at the end
	@$(RUN) -m testbed.demo $(ARGS)

test: $(READY) need-cc ## the whole test suite (ARGS="tests/unit -k judge" for a part of it)
	@$(RUN) -m testbed.binaries
	@$(RUN) -m pytest $(ARGS)

e2e: $(READY) need-cc ## a real kubelet, containerd and runc: install, fault, upgrade, what a kubelet does to pods (root, Linux; else skipped)
	@$(RUN) -m e2e $(ARGS)

check: $(READY) ## ruff, format, mypy --strict, import contracts, generated files
	@$(RUN) docs/generate.py --check
	@$(RUN) charts/generate.py --check
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) -m mypy images
	@$(RUN) -m mypy .ci/venv.py docs/generate.py charts/generate.py
	@.venv/bin/lint-imports

matrix: $(READY) need-cc ## every simulated machine with every fault: what must follow, and what was seen
	@$(RUN) -m testbed.matrix $(ARGS)

loadtest: $(READY) need-cc ## throughput, latency, writes and memory of the operator at 100, 1,000 and 5,000 nodes
	@$(RUN) -m loadtest $(ARGS)

testbed: $(READY) need-cc ## the demo's cluster to play with: up, and the commands to use it
	@$(RUN) -m testbed up $(ARGS)

images: $(READY) ## the operator's and the probe's image as OCI archives in dist/images, without an engine (NCCL=1: and the NCCL image)
	@$(RUN) -m images archives $(if $(NCCL),operator probe nccl) $(ARGS)

reference: $(READY) ## what is generated: docs/reference, the chart's copies of the CRDs, its schema
	@$(RUN) docs/generate.py
	@$(RUN) charts/generate.py

constraints: ## constraints.txt anew, from the newest versions that pyproject.toml allows
	@"$(PYTHON)" .ci/venv.py pins

clean: ## remove .venv, .testbed and the tools' caches from the checkout
	@if [ -d .testbed ] && ! NODEGAUGE_TESTBED= $(RUN) -m testbed down; then \
	echo "The testbed in .testbed could not be asked to stop. If nothing of it runs: rm -rf .testbed, then make clean." >&2; exit 1; fi
	@rm -rf .venv .testbed .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf nodegauge.egg-info operator/src/nodegauge.egg-info probes/src/nodegauge.egg-info
	@echo "The built control plane stays in $${NODEGAUGE_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/nodegauge}: remove that folder to build it anew."

need-cc:
	@command -v cc >/dev/null || { echo "A C compiler is needed for the simulated driver and none is on PATH. Debian and Ubuntu: apt-get install gcc libc6-dev" >&2; exit 1; }

$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "nodegauge needs Python 3.11 or newer, and found: $$("$(or $(PYTHON),python3)" --version 2>&1 | head -1)." >&2; \
	echo "Debian 12 and Ubuntu 24.04: apt-get install python3 python3-venv; or name one: make PYTHON=/path/to/python3.12" >&2; \
	exit 1; }
	@"$(PYTHON)" .ci/venv.py install "$@"
