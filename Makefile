# Python 3.10–3.13 and make are all that is needed; `make help` says what there is.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint bench clean

# What a person may set: make test TESTS=tests/test_plan.py PYTEST_ARGS=-x
PYTHON ?=
VENV ?= .venv
TESTS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=

PY := "$(VENV)/bin/python"
# One stamp per PYTHON asked for, so that asking for another one is noticed.
STAMP := $(VENV)/.installed$(subst /,_,$(PYTHON))
DEMO := demo_output
SOURCES := beam_pipeline trainer scripts tests recipes $(wildcard benchmarks)

help:  ## Show this list
	@echo "Usage: make TARGET [PYTHON=python3.12] [VENV=.venv]"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 10

$(STAMP): setup.py constraints.txt beam_pipeline/__init__.py scripts/venv.sh
	@sh scripts/venv.sh "$(VENV)" "$(PYTHON)"
	@touch "$@"

setup: $(STAMP)  ## Create .venv and install everything, only when something changed

demo: export TF_CPP_MIN_LOG_LEVEL = 3
demo: $(STAMP)  ## Draw a small set of pictures, build shards, verify them, train on 2 replicas
	@rm -rf $(DEMO)/images $(DEMO)/model
	@$(PY) scripts/make_demo_images.py --output $(DEMO)/images
	$(PY) -m beam_pipeline --input $(DEMO)/images --output $(DEMO)/shards --image_size 96 \
		--splits train=0.8,validation=0.2 --num_shards train=8,validation=2 --overwrite
	$(PY) -m beam_pipeline.verify $(DEMO)/shards
	$(PY) -m trainer --data $(DEMO)/shards --output $(DEMO)/model --model cnn --epochs 5 \
		--batch_size 32 --replicas 2 --seed 1
	@$(PY) scripts/demo_summary.py --shards $(DEMO)/shards --model $(DEMO)/model

test: $(STAMP)  ## Run the tests (TESTS=… and PYTEST_ARGS=… narrow it)
	$(PY) -m pytest $(PYTEST_ARGS) $(TESTS)

lint: $(STAMP)  ## Check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(SOURCES)

bench: $(STAMP)  ## Measure speed and memory (BENCH_ARGS=… is passed on)
	$(PY) -m benchmarks.run $(BENCH_ARGS)

clean:  ## Remove what was made; .venv stays
	rm -rf $(DEMO) bench_output recipe_output build dist *.egg-info \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis
	find beam_pipeline trainer scripts tests recipes benchmarks -name __pycache__ -type d -prune \
		-exec rm -rf {} + 2>/dev/null || true
