# The targets need Python 3.11–3.13 and make. `make help` lists all targets.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lock demo test test-long test-fast test-gpu fake-gpu prism torch worker-pool \
	job-service test-flink lint docs install-check bench clean

# Set these variables as in make test TESTS=tests/beam_pipeline/planning/test_plan.py PYTEST_ARGS=-x
PYTHON ?=
VENV ?= .venv
TESTS ?=
TEST_JOBS ?= 3
PYTEST_ARGS ?=
BENCH_ARGS ?=
FAKE_GPUS ?=
export FLINK_MASTER ?=
POOL_PORT ?= 50000
JOB_PORT ?= 8073

PY := "$(VENV)/bin/python"
RUN_TESTS = $(PY) -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --timeout 900
# Each value of PYTHON has its own stamp file, so that make notices another value.
STAMP := $(VENV)/.installed$(subst /,_,$(PYTHON))
DEMO := demo_output
SOURCES := imageshards beam_pipeline trainer scripts tests recipes $(wildcard benchmarks)

help:  ## Show this list
	@echo "Usage: make TARGET [PYTHON=python3.12] [VENV=.venv]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 22

$(STAMP): pyproject.toml setup.py constraints.txt imageshards/__init__.py scripts/venv.sh
	@sh scripts/venv.sh "$(VENV)" "$(PYTHON)"
	@touch "$@"

setup: $(STAMP)  ## Create .venv and install everything; does nothing if nothing has changed

lock:  ## Update constraints.txt after a change in pyproject.toml (needs uv: pip install uv)
	uv pip compile --quiet --universal --python-version 3.11 --no-annotate \
		--no-emit-index-url --extra dev pyproject.toml --output-file constraints.txt

demo: export TF_CPP_MIN_LOG_LEVEL = 3
demo: $(STAMP)  ## Draw a small dataset, build and verify its shards, train a model on 2 replicas
	@rm -rf $(DEMO)/images $(DEMO)/model
	@$(PY) scripts/make_demo_images.py --output $(DEMO)/images
	$(PY) -m imageshards build --input $(DEMO)/images --output $(DEMO)/shards --image_size 96 \
		--splits train=0.8,validation=0.2 --num_shards train=8,validation=2 --overwrite
	$(PY) -m imageshards verify $(DEMO)/shards
	$(PY) -m imageshards train --data $(DEMO)/shards --output $(DEMO)/model --model cnn --epochs 5 \
		--batch_size 32 --replicas 2 --seed 1
	@$(PY) scripts/demo_summary.py --shards $(DEMO)/shards --model $(DEMO)/model

test: $(STAMP)  ## Run the tests (select with TESTS=… and PYTEST_ARGS=…; TEST_JOBS=3 processes)
	$(RUN_TESTS) $(PYTEST_ARGS) $(TESTS)

test-long: $(STAMP) prism fake-gpu  ## Run the tests that repeat a mechanism, and the guides
	$(RUN_TESTS) -m long $(PYTEST_ARGS) $(TESTS)

test-fast: $(STAMP)  ## Run the tests that need no server, no TensorFlow and no second process
	$(PY) -m pytest -n $(TEST_JOBS) --fast $(PYTEST_ARGS) $(TESTS)

test-gpu: export TF_CPP_MIN_LOG_LEVEL = 3
test-gpu: $(STAMP) $(if $(FAKE_GPUS),fake-gpu)  ## Run the tests of GPUs on those of this machine (on fake ones: FAKE_GPUS=2)
	@found=$$($(PY) -c "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))") \
		&& if [ "$$found$(FAKE_GPUS)" = 0 ]; then echo "TensorFlow finds no GPU; no test ran"; \
		else REAL_GPUS=$(if $(FAKE_GPUS),0,$$found) $(PY) -m pytest -m "gpu or long" $(PYTEST_ARGS) tests/gpu; fi

# A failure is no error: without the fake GPU, its tests skip with a notice.
fake-gpu: $(STAMP)  ## Build a GPU for TensorFlow that works on any machine (needs g++)
	@sh tests/gpu/fake_device/build.sh $(PY) || true

# A failure is no error: without Prism, the tests that need Prism skip with a notice.
prism: $(STAMP)  ## Install Prism, Beam's portable runner for one host (needs Go)
	@$(PY) scripts/prism.py >/dev/null || true

# PyTorch is not in constraints.txt, because few people need PyTorch and most of its wheels include CUDA.
torch: $(STAMP)  ## Install PyTorch for the tests of data.source (5 GB if the wheel includes CUDA)
	@$(PY) -c "import torch" 2>/dev/null || $(PY) -m pip install --quiet -c constraints.txt torch

# Beam's worker pool starts each worker with the first `python` on the pool's PATH.
worker-pool: $(STAMP)  ## Start a pool of Beam workers on this host, without Docker, until Ctrl-C (POOL_PORT=…)
	@PATH="$(abspath $(VENV))/bin:$$PATH" exec $(PY) \
		-m apache_beam.runners.worker.worker_pool_main --service_port $(POOL_PORT)

job-service: $(STAMP)  ## Start Prism as a job service until Ctrl-C (JOB_PORT=…)
	@prism=$$($(PY) scripts/prism.py) && \
		exec "$$prism" --job_port=$(JOB_PORT) --serve_http=false --log_level=warn --log_kind=text

test-flink: $(STAMP)  ## Run a build on a running Flink cluster (FLINK_MASTER=localhost:8081)
	$(PY) -m pytest -rs -p no:cacheprovider $(PYTEST_ARGS) tests/deploy/flink_end_to_end.py

lint: $(STAMP)  ## Check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(SOURCES)
	"$(VENV)/bin/lint-imports"

# The variable silences Material's notice about MkDocs 2, which is no warning about this site.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMP)  ## Build the documentation into site/; warnings are errors
	$(PY) -m mkdocs build --strict
	@echo "site/index.html"

# This target does not depend on .venv; PYTHON=… would otherwise create .venv with another Python.
install-check:  ## Build the wheel, install and test each extra in a new environment (PYTHON=…)
	@python3 scripts/install_check.py $(if $(PYTHON),--python "$(PYTHON)")

bench: $(STAMP)  ## Measure speed and memory (BENCH_ARGS=… are options of benchmarks.run)
	$(PY) -m benchmarks.run $(BENCH_ARGS)

clean:  ## Remove all generated files except .venv
	rm -rf $(DEMO) bench_output recipe_output site build dist *.egg-info \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis
	find imageshards beam_pipeline trainer scripts tests recipes benchmarks -name __pycache__ -type d -prune \
		-exec rm -rf {} + 2>/dev/null || true
