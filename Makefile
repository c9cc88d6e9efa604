# `make compare` and `make test` are all a newcomer needs; both set up the environment first if need be.
.DEFAULT_GOAL := help
.ONESHELL:
SHELL := bash
MAKEFLAGS += --no-print-directory
.SHELLFLAGS := -euo pipefail -c

# Recipes see no path but through the environment: the shell splits and unquotes what stands in their text.
# What is typed behind `make` reaches it as it is: make would read "$" in it, and run what stands in $(shell ...).
$(foreach name,SCRIPT FOLDER INTERPRETER PYTHON PRESET GPU A B PREPARED ARCHIVE,$(if $(filter command,$(firstword $(origin $(name)))),$(eval override export $(name) := $$(value $(name)))))
export PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
EXTRAS := $(VENV)/.extras
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Where it is set, every process would compile its imports again.
export PYTHONDONTWRITEBYTECODE :=
# The machine's own certificates, so that a proxy of the house works.
export UV_SYSTEM_CERTS := 1
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1

.PHONY: help setup extras compare rebench report gallery screens diff use params audit search rehearse fit mlflow serve check lint types imports licences golden test test-fast test-all nodes-demo museum mutants chaos bench-levers bench lease-kit gpu-day bench-growth retrain lock clean

# A line that begins with `##@` is the heading of the targets below it.
help:
	@sed -nE 's/^##@ (.*)/\n\1/p; s/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | awk -F'\t' 'NF > 1 {printf "%-25s %s\n", $$1, $$2; next} {print}'

##@ Use: run comparisons

compare: $(READY)  ## Run the comparison of params.yaml; what is finished is not run again
	@python -m flows

rebench: $(READY)  ## Measure the speed again though nothing has changed; fails if a cell has become slower
	@python -m flows --rebench

retrain: $(READY)  ## Train every cell anew, though nothing has changed
	@rm -rf .work/runs
	dvc repro fingerprint
	dvc repro -f -s train
	python -m flows

use: $(READY)  ## Make a comparison of presets/ the active one: make use PRESET=qwen2-arxiv
	@python -m tasks.params.presets "$${PRESET-}"

params: $(READY)  ## Check params.yaml
	@python -m tasks.params && echo "params.yaml is valid"

rehearse: $(READY)  ## Will it fit, how fast will it be, without a GPU: make rehearse GPU="2x H100-80"
	@python -m tasks.rehearsal "$${GPU-}"

audit: $(READY)  ## Any training script, unchanged: make audit SCRIPT="train.py --epochs 2" CELLS=1,2
	@python -m tasks.auditing

search: $(READY)  ## Which parameters are best: trials of params.yaml, halved rung by rung
	@python -m flows.search

fit: $(READY)  ## Leave out the cells that would not fit, and list them with the reason: make fit GPU="2x 4090"
	@python -m tasks.rehearsal --leave-out "$${GPU-}"

report: $(READY)  ## Render the report again from reports/results.json, without training
	@python -m tasks.report --from-results reports/results.json --reports reports

gallery: $(READY)  ## Render the examples of docs/gallery again, from their results.json
	@for results in docs/gallery/*/results.json; do
	  python -m tasks.report --from-results "$$results" --reports "$${results%/*}"
	done

screens: $(READY)  ## Pictures of every screen of the comparison that stands here: docs/gallery/screens/
	@python -m tests.screens docs/gallery/screens

diff: $(READY)  ## Two results.json side by side, also as reports/diff.html: make diff A=... B=...
	@python -m tasks.reporting.diff "$${A-}" "$${B-}" --page reports/diff.html

clean:  ## Remove everything that a comparison made; asks first
	@read -r -p "Remove what is in data/ and reports/ (the history, too), .work/, mlflow.db, mlruns/, tensorboard/, wandb/, dvc.lock and DVC's cache? [y/N] " answer
	[ "$$answer" = y ]
	mkdir -p data reports
	# README.md says in a fresh clone what will stand there.
	find data reports -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	rm -rf .work mlflow.db mlruns tensorboard wandb .dvc/cache dvc.lock

##@ Look: at runs and at schedules

mlflow: $(READY)  ## Open the runs in MLflow, on http://127.0.0.1:5000/runs
	@python -m tasks.services.tracker_ui

serve: $(READY)  ## Serve the deployments ddp-compare and rebench (weekly), until Ctrl-C
	@python -m flows.serve

nodes-demo: $(EXTRAS)  ## A small comparison on two machines of a Ray cluster that are both this one
	@python -m tests.nodes_demo

##@ Prove: that what is said is right

test: check  ## Check, and all tests but the long ones
	@python -m tests

test-all: check  ## All of that, and the long ones: every exhibit of the museum is trained
	@python -m tests --all

mutants: $(READY)  ## Wrong functions all over the product, and the first test that sees each (tests/mutants/table.md)
	@python -m tests.mutants

museum: $(READY)  ## Wrong speedups, each built on purpose, and who catches it (docs/museum.md)
	@python -m tests.museum

chaos: $(READY)  ## Kills, crashes, flipped bits and more, each many times; an hour or more (docs/faults.md)
	@python -m tests.chaos

bench: $(READY)  ## Our training step beside other ways to train, and 2 processes against 1
	@python -m benchmarks.throughput

lease-kit: $(READY)  ## What to carry to a machine with a card and little else (.lease), and the command to type there
	@python -m benchmarks.gpu_day.kit

# Runs where little is installed: torch, transformers, numpy, scipy, safetensors and what `make lease-kit` made elsewhere.
gpu-day:  ## All that a card is wanted for, within 7.5 minutes, into one file (ARCHIVE=gpu-day.tgz)
	@"$$PYTHON" -m benchmarks.gpu_day --prepared "$${PREPARED-.lease/prepared}" --archive "$${ARCHIVE-gpu-day.tgz}"

bench-growth: $(READY)  ## How time and memory grow with rows, steps and epochs
	@python -m benchmarks.growth

bench-levers: $(READY)  ## What each lever brings: packing, chunks of the loss, the optimizer, options of ddp, compiled layers
	@python -m benchmarks.levers

##@ Develop: change ddp-compare itself

setup: $(READY)  ## Make .venv from the hash-pinned requirements.lock

# uv itself comes from the same lock, by hash, through pip.
$(READY): requirements.lock pyproject.toml
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, got " + sys.version.split()[0])'
	[ -x $(VENV)/bin/python ] || "$$PYTHON" -m venv $(VENV)
	awk '/^uv==/ {on=1} on {print} on && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.lock
	[ -x $(VENV)/bin/uv ] || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	# Before 3.11.11, venv writes an `activate` that takes no quotation mark in the folder's name.
	uv venv --quiet --offline --allow-existing --python $(VENV)/bin/python $(VENV)
	echo "Installing the packages of requirements.lock (a minute or two the first time)"
	uv pip sync --python $(VENV)/bin/python --quiet --compile-bytecode --require-hashes requirements.lock
	uv pip install --python $(VENV)/bin/python --quiet --no-deps --no-build-isolation --offline -e .
	# A download without .git: DVC would ask for a git repository.
	[ -e .git ] || dvc config --local core.no_scm true
	touch $@

extras: $(EXTRAS)  ## Add Ray, W&B, TensorBoard, Lightning, peft and bitsandbytes (LoRA) and DeepSpeed, by the hashes of requirements-extras.lock

# DeepSpeed comes as sources alone. None of its C++ is built, and its set-up runs with the setuptools of the lock.
# An environment that was made anew has lost them.
$(EXTRAS): requirements-extras.lock $(READY)
	@DS_BUILD_OPS=0 DS_ACCELERATOR=cpu uv pip install --python $(VENV)/bin/python --quiet --compile-bytecode --require-hashes \
	  --no-build-isolation-package deepspeed -r requirements-extras.lock
	touch $@

golden: $(READY)  ## Write the texts of three reports anew (tests/golden), after sentences were reworded
	@python -m tests.golden

test-fast: $(READY)  ## The quick answer: tests that take seconds
	@pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not alone"

check: $(READY)  ## Lint, types, import rules, licences and known vulnerabilities
	@$(MAKE) -j 2 --output-sync=target lint types imports licences

lint: $(READY)
	@ruff check . && ruff format --check .

types: $(READY)
	@mypy --num-workers 2

imports: $(READY)
	@lint-imports

licences: $(READY)  ## Licences of requirements.lock, and known vulnerabilities where the network allows
	@python -m tests.licences

lock: $(READY)  ## Resolve requirements.lock and requirements-extras.lock anew from pyproject.toml
	@uv pip compile --quiet --universal --generate-hashes --no-header --extra dev pyproject.toml -o requirements.lock
	python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*extras["deepspeed"], *extras["lightning"], *extras["lora"], *extras["ray"], *extras["tensorboard"], *extras["wandb"], sep="\n")' |
	  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu uv pip compile --quiet --universal --generate-hashes --no-header -c requirements.lock - -o requirements-extras.lock
