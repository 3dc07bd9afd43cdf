# One environment, .venv, made from constraints.txt; every other target makes it first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv demo test test-slow test-cores print-cores test-clusters test-oldest test-newest docs docs-check wheel lint pyright bench bench-compare law mutants clean

venv: .venv/.done

.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	# an oracle of the tests that caps scikit-learn below what dmo is tested on, and works with it
	$(BIN)/python -m pip install --quiet --no-deps skmatter==0.4.1
	touch $@

demo: venv
	$(BIN)/dmo demo --out demo

# small matrices: one BLAS thread is faster, and sums are in one order; a test that hangs ends with the stacks of its threads
PYTEST = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal \
    -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

test: lint
	$(PYTEST) -m "not clusters and not slow"

# slow tests: killed processes, damaged files, the commands of the guides, every estimator with every option; SHARD=0/6 is a sixth
SHARD ?= 0/1

test-slow: venv
	$(PYTEST) -m "slow and not clusters" --shard $(SHARD)

# kernels of OpenBLAS that sum in orders of their own and that this machine can run (none where it is no x86), and the tests that
# see it
kernels = $(shell grep -qsw $(1) /proc/cpuinfo && echo $(2))
CORES := $(call kernels,sse4_2,Nehalem) $(call kernels,avx,Sandybridge) $(call kernels,avx2,Haswell Zen) $(call kernels,avx512f,SkylakeX)
ROOMS := decide fit graphs kernels labels linalg lowrank methods select \
    test_blocks.py test_metrics.py test_metrics_of_sets.py test_space.py

test-cores: venv
	# with one BLAS thread and with two; NumPy's OpenBLAS and SciPy's both see the variable
	set -e; for core in $(CORES); do for threads in 1 2; do echo "$$core, $$threads BLAS threads"; \
	OPENBLAS_CORETYPE=$$core OPENBLAS_NUM_THREADS=$$threads $(BIN)/python -m pytest -q $(ROOMS:%=tests/%); done; done

print-cores:
	@echo $(CORES)

test-clusters: venv
	# real SLURM, ssh and Dask Gateway on loopback, and the image; as root, with Debian's slurm-wlm, munge, openssh-server,
	# buildah and debootstrap installed
	DMO_PLACES_TABLE=cluster/places.md OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster/test_real_places.py

# releases that dmo is tested with beside constraints.txt, in environments of their own: SPEC 0's window from both sides
TESTS ?= tests

test-oldest: venv
	# the oldest releases that pyproject.toml allows; old ones warn of what today's others deprecate
	$(BIN)/python -m pip install --quiet uv
	rm -rf build/oldest && $(BIN)/uv venv --quiet --python $(PYTHON) build/oldest
	$(BIN)/uv pip install --quiet --python build/oldest --resolution lowest-direct --editable ".[suite]"
	OPENBLAS_NUM_THREADS=1 build/oldest/bin/python -m pytest -m "not clusters" -W ignore::DeprecationWarning -p no:cacheprovider $(TESTS)

test-newest: venv
	# the newest releases there are
	$(BIN)/python -m pip install --quiet uv
	rm -rf build/newest && $(BIN)/uv venv --quiet --python $(PYTHON) build/newest
	$(BIN)/uv pip install --quiet --python build/newest --upgrade --editable ".[suite]"
	OPENBLAS_NUM_THREADS=1 build/newest/bin/python -m pytest -m "not clusters" -p no:cacheprovider $(TESTS)

docs-check: venv
	# docstrings are complete, and their examples run
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_docstrings.py dmo

docs: venv
	# tutorials run, and what they print and draw is in the pages; nothing is fetched, warnings are errors
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	rm -rf docs/reference/python/generated  # pages of names that are gone
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

wheel:
	# what is built is installed alone into an empty environment, and learns there
	rm -rf dist build
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/bare
	build/bare/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build/bare && bin/dmo --version && bin/dmo demo --out demo && du -sh .

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	# wordings that are never right in prose
	! git grep -nwE 'anew|what is left' -- '*.md' '*.py'
	! git grep -nE '(^|[ (])\.[0-9]' -- '*.md'

pyright: venv
	# needs Node; what a user writes with the public names has no type error
	npx --yes pyright@1.1.414 --pythonpath $(BIN)/python tests/typed_use.py

bench: venv
	# works beside what one would use instead and beside the machine's limit, with one thread and two
	$(BIN)/python pipelines/benchmarks/limits.py --json build/bench/new.json

# the commit that `bench-compare` compares with, by the works of today's script
BASE ?= HEAD~1

bench-compare: venv
	rm -rf build/bench/base && git worktree prune && git worktree add --quiet --detach build/bench/base $(BASE)
	PYTHONPATH=$(CURDIR)/build/bench/base $(BIN)/python pipelines/benchmarks/limits.py --threads 1 --json build/bench/base.json
	PYTHONPATH=$(CURDIR) $(BIN)/python pipelines/benchmarks/limits.py --threads 1 --json build/bench/new.json
	git worktree remove --force build/bench/base
	$(BIN)/python pipelines/benchmarks/limits.py --compare build/bench/base.json build/bench/new.json

law: venv
	# what a product costs the driver and the workers, what it moves, and how that grows; fails where a bound is passed
	$(BIN)/python pipelines/benchmarks/law.py --check

# mutants drawn of all, the seed they are drawn with, and the first of them that is run: a later run goes on there
N ?= 200
SEED ?= 0
FIRST ?= 0

mutants: venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mutmut
	OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python .ci/mutants $(N) $(SEED) 36000 $(FIRST)

clean:
	rm -rf .venv demo build dist mutants *.egg-info docs/_build docs/auto_tutorials docs/reference/commands docs/reference/python docs/how-to/clusters docs/how-to/data
