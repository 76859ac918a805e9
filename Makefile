# Python 3.11–3.13 and make are all that is needed; `make help` says what there is.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lock demo test test-long test-fast test-gpu prism torch worker-pool \
	job-service test-flink lint docs install-check bench clean

# What a person may set: make test TESTS=tests/beam_pipeline/planning/test_plan.py PYTEST_ARGS=-x
PYTHON ?=
VENV ?= .venv
TESTS ?=
TEST_JOBS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
export FLINK_MASTER ?=
POOL_PORT ?= 50000
JOB_PORT ?= 8073

PY := "$(VENV)/bin/python"
RUN_TESTS = $(PY) -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --timeout 900
# One stamp per PYTHON asked for, so that asking for another one is noticed.
STAMP := $(VENV)/.installed$(subst /,_,$(PYTHON))
DEMO := demo_output
SOURCES := imageshards beam_pipeline trainer scripts tests recipes $(wildcard benchmarks)

help:  ## Show this list
	@echo "Usage: make TARGET [PYTHON=python3.12] [VENV=.venv]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 22

$(STAMP): setup.py constraints.txt imageshards/__init__.py scripts/venv.sh
	@sh scripts/venv.sh "$(VENV)" "$(PYTHON)"
	@touch "$@"

setup: $(STAMP)  ## Create .venv and install everything, only when something changed

lock:  ## Write constraints.txt anew after a change in setup.py (needs uv: pip install uv)
	uv pip compile --quiet --universal --python-version 3.11 --no-annotate \
		--no-emit-index-url --extra dev setup.py --output-file constraints.txt

demo: export TF_CPP_MIN_LOG_LEVEL = 3
demo: $(STAMP)  ## Draw a small set of pictures, build shards, verify them, train on 2 replicas
	@rm -rf $(DEMO)/images $(DEMO)/model
	@$(PY) scripts/make_demo_images.py --output $(DEMO)/images
	$(PY) -m imageshards build --input $(DEMO)/images --output $(DEMO)/shards --image_size 96 \
		--splits train=0.8,validation=0.2 --num_shards train=8,validation=2 --overwrite
	$(PY) -m imageshards verify $(DEMO)/shards
	$(PY) -m imageshards train --data $(DEMO)/shards --output $(DEMO)/model --model cnn --epochs 5 \
		--batch_size 32 --replicas 2 --seed 1
	@$(PY) scripts/demo_summary.py --shards $(DEMO)/shards --model $(DEMO)/model

test: $(STAMP) prism  ## Run the tests (TESTS=… and PYTEST_ARGS=… narrow it; TEST_JOBS=2 at once)
	$(RUN_TESTS) $(PYTEST_ARGS) $(TESTS)

test-long: $(STAMP) prism  ## Run those that repeat a mechanism on a second engine
	$(RUN_TESTS) -m long $(PYTEST_ARGS) $(TESTS)

test-fast: $(STAMP)  ## Run the tests that need no server, no TensorFlow and no second process
	$(PY) -m pytest -n $(TEST_JOBS) --fast $(PYTEST_ARGS) $(TESTS)

test-gpu: export TF_CPP_MIN_LOG_LEVEL = 3
test-gpu: $(STAMP)  ## Run those that need a GPU; where TensorFlow sees none, say so
	@found=$$($(PY) -c "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))") \
		&& if [ "$$found" = 0 ]; then echo "no GPU: nothing was tested"; \
		else $(PY) -m pytest -m gpu $(PYTEST_ARGS) tests/gpu; fi

# Where it cannot be had, the tests that need it skip and say so.
prism: $(STAMP)  ## Have Prism ready, a portable runner for this host: copied or built once by Go
	@$(PY) scripts/prism.py >/dev/null || true

# Outside of constraints.txt, which is for all: few need it, and on most indexes its wheel brings CUDA.
torch: $(STAMP)  ## Install PyTorch, for the tests that read data.source by it (5 GB where it comes with CUDA)
	@$(PY) -c "import torch" 2>/dev/null || $(PY) -m pip install --quiet -c constraints.txt torch

# Beam's pool starts the first `python` on its PATH for each worker.
worker-pool: $(STAMP)  ## Serve Beam workers on this host, without Docker, until Ctrl-C (POOL_PORT=…)
	@PATH="$(abspath $(VENV))/bin:$$PATH" exec $(PY) \
		-m apache_beam.runners.worker.worker_pool_main --service_port $(POOL_PORT)

job-service: $(STAMP)  ## Serve Prism as a job service until Ctrl-C (JOB_PORT=…)
	@prism=$$($(PY) scripts/prism.py) && \
		exec "$$prism" --job_port=$(JOB_PORT) --serve_http=false --log_level=warn --log_kind=text

test-flink: $(STAMP)  ## Run a build on a real Flink cluster that you started (FLINK_MASTER=localhost:8081)
	$(PY) -m pytest -rs -p no:cacheprovider $(PYTEST_ARGS) tests/deploy/flink_end_to_end.py

lint: $(STAMP)  ## Check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(SOURCES)
	"$(VENV)/bin/lint-imports"

# Material's notice about another program's next version is no warning of this site's.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMP)  ## Build the documentation into site/; a warning is an error
	$(PY) -m mkdocs build --strict
	@echo "site/index.html"

# It does not use .venv, so that PYTHON=… makes none for another Python.
install-check:  ## Install the built wheel with each extra in a new environment and use it there (PYTHON=…)
	@python3 scripts/install_check.py $(if $(PYTHON),--python "$(PYTHON)")

bench: $(STAMP)  ## Measure speed and memory (BENCH_ARGS=… is passed on)
	$(PY) -m benchmarks.run $(BENCH_ARGS)

clean:  ## Remove what was made; .venv stays
	rm -rf $(DEMO) bench_output recipe_output site build dist *.egg-info \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis
	find imageshards beam_pipeline trainer scripts tests recipes benchmarks -name __pycache__ -type d -prune \
		-exec rm -rf {} + 2>/dev/null || true
