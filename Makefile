# archsearch: every door sets up .venv first, from nothing but python3 (3.11 or newer) and make.
PYTHON ?= python3
WORKERS ?= 2
RULES ?= 200
BIN := .venv/bin
READY := .venv/ready
SHORT ?= directory=runs/quickstart-short trials=3 tasks.mqar.tokens=100_000 tasks.text.tokens=50_000
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help study study-short test check format lint types order gpu-test fuzz hopper golden bench endurance sizes

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

study: $(READY)  ## set up, then run the quickstart study: ranking, report, exported module
	$(BIN)/archsearch study run studies/configs/quickstart.yaml

study-short: $(READY)  ## the same with three trials and few tokens, to see every stage
	$(BIN)/archsearch study run studies/configs/quickstart.yaml $(SHORT)

test: $(READY)  ## set up, then run the tests that need no GPU
	$(PYTEST) -n $(WORKERS) -m "not gpu"

check: format lint types order test  ## format, lint, types, import order, tests: everything before a commit

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

order: $(READY)
	$(BIN)/lint-imports

gpu-test: $(READY)  ## the tests marked gpu, on this machine's CUDA device; nearly all of it is compiling, on every core
	$(PYTEST) -m gpu -n $$(nproc) --dist loadgroup --no-loadscope-reorder

fuzz: $(READY)  ## 1,000 random rules in PyTorch, then RULES of them in Triton, each against the token loop
	OMP_NUM_THREADS=1 $(BIN)/python -m archsearch.kernels.conformance.fuzz --backend torch --rules 1000
	OMP_NUM_THREADS=1 $(BIN)/python -m archsearch.kernels.conformance.fuzz --backend triton --rules $(RULES)

hopper: $(READY)  ## what Triton 3.6 makes of the kernels for sm_90; it is installed beside the environment
	test -d .venv/triton-3.6.0 || $(BIN)/python -m pip install --quiet --target .venv/triton-3.6.0 --no-deps triton==3.6.0
	ARCHSEARCH_TRITON=$(CURDIR)/.venv/triton-3.6.0 $(PYTEST) tests/kernels/test_triton_hopper.py

golden: $(READY)  ## rewrite the golden files, then show what changed
	$(PYTEST) -m "not gpu" --update-golden -k golden
	git diff --stat -- tests/golden

bench: test gpu-test  ## the tests first, then timings beside the peers that are installed
	$(BIN)/archsearch bench gated_delta_net q_delta eda

endurance: $(READY)  ## 100 SIGKILLs of drivers, workers and a node; then what the engine takes at 1,000 trials
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/studies/kill_study.py --kills 100 --trials 40 --slots 1 --step 0.6
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/studies/kill_study.py --kills 100 --trials 40 --slots 2 --step 1.2
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/studies/overhead.py --trials 1000

sizes:  ## lines a folder, the ten largest files
	@for folder in archsearch/*.py archsearch/dsl archsearch/lowering archsearch/report kernels mixers spaces studies tests; do \
	  printf '%7d  %s\n' "$$(find $$folder -name '*.py' -exec cat {} + | wc -l)" "$$folder"; done
	@echo; find . -name '*.py' -not -path './.venv/*' -exec wc -l {} + | grep -v total | sort -rn | head -10

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "archsearch needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11")'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@
