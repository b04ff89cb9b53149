# `make demo` and `make test` do the whole set-up themselves.
#
#   PYTHON        the interpreter that makes .venv (3.10 or newer)
#   TORCH_INDEX   an additional package index, used for torch alone
#   PROMPT        what `make demo` asks
#   DEMO_ARGS     how it answers
#   PYTEST_ARGS   passed on to pytest
#   BENCH_ARGS    passed on to the GPU benchmark
#   WORKERS       processes that run the tests

PYTHON ?= python3
PROMPT ?= Explain in two sentences why the sky is blue.
DEMO_ARGS ?= --temperature 0 --max-tokens 200
PYTEST_ARGS ?=
BENCH_ARGS ?=
WORKERS ?= 2
export TORCH_INDEX

PY := .venv/bin/python
# -I keeps the working directory off the import path: otherwise `core` and `plugins` would be packages.
# One thread each: two workers with two threads each would wait for one another on two cores.
# What is tested by itself is the CPU, on a machine with a GPU too.
PYTEST := CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(PY) -Im pytest -n $(WORKERS) --dist worksteal

.PHONY: help demo test accept test-gpu lint format sync bench-cpu bench-prefix bench-host bench-async bench-server bench-startup bench-gpu clean setup setup-dev

help:
	@echo "make demo           set up, fetch a small model and let it answer"
	@echo "make test           set up and run the tests"
	@echo "make accept         all tests, the long ones too; a skip is a failure unless hardware is missing"
	@echo "make test-gpu       the tests that need a GPU, on a machine with one"
	@echo "make lint           ruff and mypy"
	@echo "make format         let ruff rewrite the code"
	@echo "make sync           write what must agree among the members, and the reference"
	@echo "make bench-cpu      prompt and decode rates on this machine"
	@echo "make bench-prefix   what the prefix cache saves on this machine"
	@echo "make bench-host     host time of plan, submit and update per step"
	@echo "make bench-async    what streaming from an engine in its own process costs"
	@echo "make bench-server   what streaming over HTTP costs the front end"
	@echo "make bench-startup  what the command line takes to start, in wall and processor time"
	@echo "make bench-gpu      standard workloads on a GPU, beside stored references (BENCH_ARGS)"
	@echo "make clean          remove caches and builds; .venv and the model cache stay"

setup:
	@$(PYTHON) scripts/setup_env.py

setup-dev:
	@$(PYTHON) scripts/setup_env.py --dev

demo: setup
	@model="$$($(PY) scripts/fetch_model.py)" && .venv/bin/pegboard run "$$model" "$(PROMPT)" $(DEMO_ARGS)

test: setup-dev
	@$(PY) scripts/fetch_model.py
	$(PYTEST) -m "not accept and not gpu" $(PYTEST_ARGS)

accept: setup-dev
	@$(PY) scripts/fetch_model.py
	$(PYTEST) --no-skips $(PYTEST_ARGS)

test-gpu: setup-dev
	OMP_NUM_THREADS=1 $(PY) -Im pytest -n $(WORKERS) --dist worksteal -m gpu $(PYTEST_ARGS)

lint: setup-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

sync: setup-dev
	$(PY) scripts/workspace.py
	$(PY) scripts/reference.py

bench-cpu: setup-dev
	@model="$$($(PY) scripts/fetch_model.py)" && $(PY) -I tests/benchmarks/bench_cpu.py "$$model"

bench-prefix: setup-dev
	@model="$$($(PY) scripts/fetch_model.py)" && $(PY) -I tests/benchmarks/bench_prefix.py "$$model"

bench-host: setup-dev
	$(PY) -I tests/benchmarks/bench_host.py

bench-async: setup-dev
	$(PY) -I tests/benchmarks/bench_async.py

bench-server: setup-dev
	$(PY) -I tests/benchmarks/bench_server.py

bench-startup: setup-dev
	@model="$$($(PY) scripts/fetch_model.py)" && $(PY) -I tests/benchmarks/bench_startup.py 15 "$$model"

bench-gpu: setup-dev
	$(PY) -I tests/benchmarks/bench_gpu.py $(BENCH_ARGS)

clean:
	rm -rf build dist __pycache__ .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	rm -rf core/build core/dist plugin*/*/build plugin*/*/dist
	find core plugin* tests scripts -name __pycache__ -prune -exec rm -rf {} +
