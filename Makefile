# One target for each task; `make` alone lists them.
#
# Every path is relative, because make cannot handle a checkout whose path has a space. Recipes are single
# commands: make then starts the program itself, without a shell between them that could swallow a Ctrl-C.
# The stamp carries a checksum of the checkout's path: an environment that was copied or moved is built again.

# The distribution's own Python first, where it can make environments: our tests took a tenth less CPU time with
# Debian's than with one that pyenv compiled by its defaults, and imports a quarter less.
PYTHON ?= $(shell for needs in ensurepip sys; do \
	for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c "import $$needs, sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && echo "$$p" && exit; done; done)
READY := .venv/ready-$(shell pwd | cksum | cut -d' ' -f1)
RUN := .venv/bin/python
ARGS ?=
# Tests wait for probes, pods and time as much as they compute: three workers more than cores. Quick ones mostly
# compute: one more.
WORKERS := $(shell echo $$((3 + $$(getconf _NPROCESSORS_ONLN))))
QUICK_WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

# Python variables of the caller's shell must not reach ours.
# Without the last one every process would compile all it imports, and every test worker rewrite all asserts.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
# Print progress at once, also into a pipe.
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo quick test e2e check collection tarball hosts matrix loadtest giveway life fuzz corpus episodes faults upgrade mutants flaky testbed images reference constraints clean need-cc

help: ## list the targets
	@echo "Start with make demo: nodegauge on a real control plane with sixteen simulated GPU nodes."
	@echo
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/\1 \2/p' Makefile | while read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done
	@echo
	@echo "While the testbed runs: .venv/bin/python -m testbed status | nodes | faults | fault NODE NAME | load NODE PERCENT | heal NODE | down"

demo: $(READY) need-cc ## install nodegauge on sixteen simulated GPU nodes, show labels, taints and scheduled jobs, then clean up
	@$(RUN) -m testbed.demo $(ARGS)

quick: $(READY) need-cc ## unit and probe tests without the slow ones, in two minutes on two cores (ARGS="-k judge" selects some)
	@$(RUN) -m pytest -n $(QUICK_WORKERS) -m "not slow" tests/unit tests/probes $(ARGS)

test: $(READY) need-cc ## all tests, on a real control plane (ARGS="tests/cluster -k crash" selects some)
	@$(RUN) -m testbed.binaries
	@$(RUN) -m pytest -n $(WORKERS) $(ARGS)

e2e: $(READY) need-cc ## test install, faults and upgrade on a real kubelet with containerd (needs Linux and root, else skipped)
	@$(RUN) -m e2e $(ARGS)

check: $(READY) ## name what a change still lacks; lint, format, types, import contracts, names
	@$(RUN) .ci/complete.py
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) -m galaxy.types
	@.venv/bin/lint-imports
	@$(RUN) .ci/names.py

matrix: $(READY) need-cc ## judge every simulated machine with every fault and compare with what must follow (some minutes)
	@$(RUN) -m testbed.matrix $(ARGS)

collection: $(READY) need-cc ## build the Ansible collection into dist/collection, install it, and run every check of Galaxy's on it (ARGS=--again repeats what passed)
	@$(RUN) -m galaxy $(ARGS)

tarball: $(READY) ## build the Ansible collection's tarball in dist/collection, in seconds, and check nothing
	@$(RUN) -m galaxy --tarball
hosts: $(READY) need-cc ## start simulated GPU hosts behind real sshd on loopback, to try the Ansible collection (ARGS="--hosts 40")
	@$(RUN) -m hosts $(ARGS)

loadtest: $(READY) need-cc ## measure the operator's latency, writes, CPU time and memory at 100, 1,000 and 5,000 nodes in mode Watch
	@cd tests && ../$(RUN) -m fleet loadtest $(ARGS)

giveway: $(READY) need-cc ## measure how long jobs wait for GPUs that NCCL runs hold, under DRA and the device plugin (ARGS="--jobs 20 --way 0")
	@cd tests && ../$(RUN) -m fleet giveway $(ARGS)

life: $(READY) ## live 60 simulated days with 500 disturbed nodes; every change on a node needs a cause (ARGS="--nodes 50 --days 10")
	@cd tests && ../$(RUN) -m fleet life $(ARGS)

fuzz: $(READY) ## give a million odd inputs to all that reads what strangers wrote (ARGS="--inputs 20000 --seed 7")
	@cd tests && ../$(RUN) -m fuzz $(ARGS)

corpus: $(READY) ## judge the recordings of strangers and count the right, unhelpful, wrong and refused answers
	@cd tests && ../$(RUN) -m corpus $(ARGS)

faults: $(READY) need-cc ## break API server, etcd, watches, clocks and the operator, and compare each end with a calm day's (ARGS=--short)
	@cd tests && ../$(RUN) -m fleet faults $(ARGS)

upgrade: $(READY) need-cc ## install an earlier commit, upgrade to this checkout, roll back and upgrade again (ARGS="--from COMMIT")
	@cd tests && ../$(RUN) -m fleet upgrade $(ARGS)

episodes: $(READY) ## score the judge of feeding on episodes whose cause is known (ARGS=--mistakes lists the wrong answers)
	@cd tests && ../$(RUN) -P -m episodes $(ARGS)

mutants: $(READY) need-cc ## put each fault of tests/mutants into the product, and say which test notices it (ARGS="--only gates")
	@$(RUN) -m mutants $(ARGS)

flaky: $(READY) need-cc ## run tests many times beside busy loops, and say which failed how often (ARGS="tests/unit -k watch --times 20 --load 8")
	@$(RUN) -P .ci/flaky.py $(ARGS)

testbed: $(READY) need-cc ## start the demo's machines with nodegauge, to break and repair until `down` (ARGS=--bare leaves nodegauge out)
	@$(RUN) -m testbed up $(ARGS)

images: $(READY) ## build the images as OCI archives in dist/images, without a container engine (NCCL=1 adds the NCCL image)
	@$(RUN) -m images archives $(if $(NCCL),operator probe nccl) $(ARGS)

reference: $(READY) ## write the generated files: docs/reference, the chart's copies of the CRDs, its schema
	@$(RUN) .ci/complete.py --write

constraints: ## pin the newest versions that pyproject.toml allows in constraints.txt
	@"$(PYTHON)" .ci/venv.py pins

clean: ## remove .venv, .testbed, .hosts and the tools' caches from the checkout
	@if [ -d .testbed ] && ! NODEGAUGE_TESTBED= $(RUN) -m testbed down; then \
	echo "The testbed in .testbed did not stop. If none of its processes runs: rm -rf .testbed, then make clean." >&2; exit 1; fi
	@if [ -d .hosts ]; then $(RUN) -m testbed --dir .hosts down; fi
	@rm -rf .venv .testbed .hosts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
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
