# Every target first creates the environment .venv from constraints.txt. `demo` installs only the runtime dependencies.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv demo test test-slow test-cores print-cores test-clusters test-oldest test-newest docs docs-check wheel lint pyright bench bench-compare law mutants clean

venv: .venv/.done

.venv/.runtime: pyproject.toml constraints.txt
	@echo "Installing dmo and its runtime dependencies into .venv (about 60 packages, 0.9 GB) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt --editable .
	touch $@

.venv/.done: .venv/.runtime
	@echo "Installing the packages of the tests into .venv (about 130 packages, 1.2 GB) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test]"
	# skmatter is an oracle of the tests. It works with our scikit-learn, but its metadata exclude that version.
	$(BIN)/python -m pip install --quiet --no-deps skmatter==0.4.1
	touch $@

demo: .venv/.runtime
	$(BIN)/dmo demo --out demo

# One BLAS thread is faster for small matrices and fixes the order of sums. A test that hangs is stopped and prints the stacks
# of its threads.
PYTEST = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal \
    -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

test: lint
	$(PYTEST) -m "not clusters and not slow"

# Slow tests kill processes, damage files, run the commands of the guides, and combine estimators with options. They include
# most cases of tests with more than five cases (tests/conftest.py). SHARD=0/6 runs the first sixth.
SHARD ?= 0/1

test-slow: venv
	$(PYTEST) -m "slow and not clusters" --shard $(SHARD)

# The kernels of OpenBLAS that this machine can run (none on other processors than x86). They add in different orders, which
# affects the listed tests.
kernels = $(shell grep -qsw $(1) /proc/cpuinfo && echo $(2))
CORES := $(call kernels,sse4_2,Nehalem) $(call kernels,avx,Sandybridge) $(call kernels,avx2,Haswell Zen) $(call kernels,avx512f,SkylakeX)
ROOMS := decide fit graphs kernels labels linalg lowrank methods select \
    test_blocks.py test_metrics.py test_metrics_of_sets.py test_space.py

test-cores: venv
	# The variables apply to the OpenBLAS of NumPy and of SciPy.
	set -e; for core in $(CORES); do for threads in 1 2; do echo "$$core, $$threads BLAS threads"; \
	OPENBLAS_CORETYPE=$$core OPENBLAS_NUM_THREADS=$$threads $(BIN)/python -m pytest -q $(ROOMS:%=tests/%); done; done

print-cores:
	@echo $(CORES)

test-clusters: venv
	# Runs SLURM, ssh, Dask Gateway and the container image on this machine. Requires root and the Debian packages slurm-wlm,
	# munge, openssh-server, buildah and debootstrap.
	DMO_PLACES_TABLE=cluster/places.md OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster/test_real_places.py

# The oldest and the newest supported releases (SPEC 0), each in a separate environment.
TESTS ?= tests

test-oldest: venv
	# Old releases use functions that newer releases of their dependencies deprecate; ignore these warnings.
	$(BIN)/python -m pip install --quiet uv
	rm -rf build/oldest && $(BIN)/uv venv --quiet --python $(PYTHON) build/oldest
	$(BIN)/uv pip install --quiet --python build/oldest --resolution lowest-direct --editable ".[suite]"
	OPENBLAS_NUM_THREADS=1 build/oldest/bin/python -m pytest -m "not clusters" -W ignore::DeprecationWarning -p no:cacheprovider $(TESTS)

test-newest: venv
	$(BIN)/python -m pip install --quiet uv
	rm -rf build/newest && $(BIN)/uv venv --quiet --python $(PYTHON) build/newest
	$(BIN)/uv pip install --quiet --python build/newest --upgrade --editable ".[suite]"
	OPENBLAS_NUM_THREADS=1 build/newest/bin/python -m pytest -m "not clusters" -p no:cacheprovider $(TESTS)

docs-check: venv
	# Checks that docstrings are complete, and runs their examples.
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_docstrings.py dmo

docs: venv
	# Runs the tutorials and inserts their output and figures. Warnings are errors, and pages load nothing from other hosts.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	rm -rf docs/reference/python/generated  # remove pages of deleted names
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

wheel:
	# Installs the wheel into an empty environment and runs the demo there.
	rm -rf dist build
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/bare
	build/bare/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build/bare && bin/dmo --version && bin/dmo demo --out demo && du -sh .

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files -z '*.py' '*.md' '*.toml' '*.yaml' Makefile | xargs -0 $(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	# wordings that are not plain English, and decimals without a leading zero
	! git grep -nwE 'anew|what is left' -- '*.md' '*.py'
	! git grep -nE '(^|[ (])\.[0-9]' -- '*.md'

pyright: venv
	# Requires Node. Checks the types of a script that uses the public names.
	npx --yes pyright@1.1.414 --pythonpath $(BIN)/python tests/typed_use.py

bench: venv
	# Compares dmo with other libraries and with the limits of the machine, with one and with two threads.
	$(BIN)/python pipelines/benchmarks/limits.py --json build/bench/new.json

# The commit that `bench-compare` measures with the benchmarks of the current commit.
BASE ?= HEAD~1

bench-compare: venv
	rm -rf build/bench/base && git worktree prune && git worktree add --quiet --detach build/bench/base $(BASE)
	PYTHONPATH=$(CURDIR)/build/bench/base $(BIN)/python pipelines/benchmarks/limits.py --threads 1 --json build/bench/base.json
	PYTHONPATH=$(CURDIR) $(BIN)/python pipelines/benchmarks/limits.py --threads 1 --json build/bench/new.json
	git worktree remove --force build/bench/base
	$(BIN)/python pipelines/benchmarks/limits.py --compare build/bench/base.json build/bench/new.json

law: venv
	# Measures the cost of a kernel product on client and workers and the transferred bytes; fails if a bound is exceeded.
	$(BIN)/python pipelines/benchmarks/law.py --check

# Number of random mutants, random seed, and index of the first mutant to run, from which a later run can resume.
N ?= 200
SEED ?= 0
FIRST ?= 0

mutants: venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mutmut
	OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python .ci/mutants $(N) $(SEED) 36000 $(FIRST)

clean:
	rm -rf .venv demo build dist mutants *.egg-info docs/_build docs/auto_tutorials docs/reference/commands docs/reference/python docs/how-to/clusters docs/how-to/data
