# `make compare` and `make test` are all a newcomer needs; both set up the environment first if need be.
.DEFAULT_GOAL := help
.ONESHELL:
SHELL := bash
MAKEFLAGS += --no-print-directory
.SHELLFLAGS := -euo pipefail -c

# What is typed as NAME=VALUE behind a target has to be what the target takes; each takes PYTHON.
TAKES := setup:TORCH compare:PRESET use:PRESET rehearse:GPU fit:GPU diff:A diff:B gpu-day:PREPARED gpu-day:ARCHIVE \
  $(addprefix audit:,SCRIPT CELLS FOLDER INTERPRETER LAUNCHER SPEED SCALING LAUNCHES STEPS HANG_SECONDS)
ifneq ($(shell uname -s),Linux)
$(error ddp-compare needs Linux, such as WSL2 or the container of the Dockerfile)
endif
GOALS := $(or $(MAKECMDGOALS),help)
TAKEN := PYTHON $(foreach goal,$(GOALS),$(patsubst $(goal):%,%,$(filter $(goal):%,$(TAKES))))
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
ifneq ($(filter-out $(TAKEN),$(GIVEN)),)
$(error make $(GOALS): got $(filter-out $(TAKEN),$(GIVEN)); allowed: $(strip $(TAKEN)))
endif

# Recipes see no path but through the environment: the shell splits and unquotes what stands in their text.
# What is typed behind `make` reaches it as it is: make would read "$" in it, and run what stands in $(shell ...).
$(foreach name,SCRIPT CELLS LAUNCHER FOLDER INTERPRETER PYTHON TORCH PRESET GPU A B PREPARED ARCHIVE,$(if $(filter command,$(firstword $(origin $(name)))),$(eval override export $(name) := $$(value $(name)))))
export PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
# It says where the environment was made: its programs name that place, and what is copied would run the code there.
MOVED := $(shell [ ! -s $(READY) ] || [ "$$(cat $(READY))" -ef $(VENV) ] || echo --reinstall)
EXTRAS := $(VENV)/.extras
TORCH_PACKAGES := ^(torch|torchvision|triton|cuda-[a-z]+|nvidia-(cu|nc|nv)[a-z0-9-]*)==
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Where it is set, every process would compile its imports again.
export PYTHONDONTWRITEBYTECODE :=
# The machine's own certificates, so that a proxy of the house works.
export UV_SYSTEM_CERTS := 1
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1

.PHONY: help help-dev setup extras compare rebench report gallery screens diff use params audit search rehearse fit mlflow serve check lint types imports licences golden test test-fast test-all nodes-demo museum mutants bench-levers bench lease-kit gpu-day bench-growth retrain lock clean

# A line that begins with `##@` is the heading of the targets below it; those below `##@dev` are for whoever changes this.
define LIST
@awk -v heading='^##@$(1) ' '/^##@/ {on = sub(heading, ""); if (on) print "\n" $$0} on && match($$0, /^[a-z-]+:.*## /) {name = $$1; sub(/:.*/, "", name); printf "  make %-13s %s\n", name, substr($$0, RLENGTH + 1)}' Makefile
endef

help:
	$(call LIST,)
	printf '\n  make help-dev      What there is for whoever changes ddp-compare\n'

help-dev:
	$(call LIST,dev)

##@ Use: run comparisons

compare: $(READY)  ## Run what is not finished of params.yaml, or PRESET=NAME
	@ddp-compare run $(if $(filter override,$(firstword $(origin PRESET))),--preset "$$PRESET")

rebench: $(READY)  ## Measure the speed again; fails if a cell became slower
	@ddp-compare rebench

retrain: $(READY)  ## Train every cell anew, though nothing has changed
	@ddp-compare retrain

use: $(READY)  ## Take a comparison of presets/: PRESET=qwen2-arxiv
	@ddp-compare use "$${PRESET-}"

params: $(READY)  ## Check params.yaml
	@ddp-compare params

rehearse: $(READY)  ## Will it fit, how fast will it be? GPU="2x H100-80"
	@ddp-compare rehearse "$${GPU-}"

fit: $(READY)  ## Leave out the cells that would not fit: GPU="2x 4090"
	@ddp-compare rehearse --leave-out "$${GPU-}"

search: $(READY)  ## Which parameters are best? Trials, halved by rungs
	@ddp-compare search

audit: $(READY)  ## Is a script right on N ranks? SCRIPT="train.py" CELLS=1,2
	@python -m ddp_audit

report: $(READY)  ## Render the report again from reports/results.json
	@ddp-compare report

diff: $(READY)  ## Two results.json side by side: A=... B=...
	@python -m tasks.reporting.diff "$${A-}" "$${B-}" --page reports/diff.html

clean:  ## Remove what a comparison made; asks first
	@read -r -p "Remove what is in data/ and reports/ (the history, too), .work/, mlflow.db, mlruns/, tensorboard/, wandb/, dvc.lock and DVC's cache? [y/N] " answer
	[ "$$answer" = y ]
	mkdir -p data reports .work
	# The lock of a comparison (tasks/process/lock.py), whose file says who has it; it goes last, with its folder.
	exec 9>> .work/comparison.lock
	flock --nonblock 9 || { echo "clean: a comparison runs in this folder already: $$(cat .work/comparison.lock); wait for it or stop it" >&2; exit 4; }
	# README.md says in a fresh clone what will stand there.
	find data reports -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	rm -rf mlflow.db mlruns tensorboard wandb .dvc/cache dvc.lock
	rm -rf .work

##@ Look: at runs and at schedules

mlflow: $(READY)  ## Open the runs in MLflow's UI
	@ddp-compare ui

serve: $(READY)  ## Serve Prefect's deployments, one of them weekly
	@ddp-compare serve

##@ Set up, and prove

setup: $(READY)  ## Make .venv from the lock; or TORCH=installed, TORCH=cuda12

# TORCH=installed takes the torch that the machine has, as rented notebooks do; TORCH=cuda12 the last one for drivers before 580.
# Which of them it was is kept. uv itself comes from the same lock, by hash, through pip.
$(READY): requirements.lock pyproject.toml $(if $(filter override,$(firstword $(origin TORCH)))$(MOVED),always)
	@"$$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "setup: Python " + sys.version.split()[0] + "; needed: 3.11 to 3.14, such as make setup PYTHON=python3.13")'
	torch="$${TORCH-$$(cat $(VENV)/torch 2>/dev/null || true)}"
	site=(); locks=(requirements.lock)
	case "$$torch" in
	  "") if driver="$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)" && [[ "$$driver" =~ ^[0-9]+ ]] && (( BASH_REMATCH[0] < 580 )); then
	      echo "setup: the driver $$driver is for CUDA 12, and torch of requirements.lock needs 580 or later: make setup TORCH=cuda12, or TORCH=installed for the torch that is there" >&2; exit 4
	    fi ;;
	  cuda12) locks=($(VENV)/others.lock requirements-cuda12.lock) ;;
	  installed) locks=($(VENV)/others.lock); site=(--system-site-packages) ;;
	  *) echo "setup: TORCH: got $$torch; allowed: installed, cuda12, or nothing for that of requirements.lock" >&2; exit 2 ;;
	esac
	[ -x $(VENV)/bin/python ] && [ -f $(VENV)/torch ] && [ "$$torch" = "$$(cat $(VENV)/torch 2>/dev/null || true)" ] || {
	  "$$PYTHON" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("ensurepip") and "setup: Python %d.%d lacks ensurepip and makes no environment; on Debian and Ubuntu: apt install python%d.%d-venv, or take another, such as make setup PYTHON=python3.13" % (sys.version_info[:2] * 2))'
	  "$$PYTHON" -m venv "$${site[@]}" $(VENV)
	}
	echo "$$torch" > $(VENV)/torch
	awk '/^uv==/ {on=1} on {print} on && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.lock
	awk '/^[a-z]/ {on = !/$(TORCH_PACKAGES)/} on' requirements.lock > $(VENV)/others.lock
	[ -x $(VENV)/bin/uv ] || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --ignore-installed --require-hashes -r $(VENV)/uv.lock
	# Before 3.11.11, venv writes an `activate` that takes no quotation mark in the folder's name.
	uv venv --quiet --offline --allow-existing "$${site[@]}" --python $(VENV)/bin/python $(VENV)
	$(if $(MOVED),echo "$(VENV) was made as $$(cat $(READY)); it is made anew for this folder")
	echo "Installing the packages of requirements.lock (a minute or two the first time)"
	uv pip sync --python $(VENV)/bin/python --quiet --compile-bytecode $(MOVED) --require-hashes "$${locks[@]}" || {
	  # Where index, proxy or certificates are set for pip alone, pip takes over; it keeps any password to itself.
	  [ $$? -le 2 ]
	  $(VENV)/bin/python -m ensurepip > /dev/null 2>&1
	  $(VENV)/bin/python -m pip config list 2> /dev/null | grep -E '\.(index-url|extra-index-url|find-links|cert|client-cert|proxy|trusted-host)=' > /dev/null
	  echo "uv did not get them (above) and reads no settings of pip: pip tries it with those, which takes longer"
	  $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(MOVED:--reinstall=--force-reinstall) --require-hashes "$${locks[@]/#/-r}"
	  uv pip sync --python $(VENV)/bin/python --quiet --offline --require-hashes "$${locks[@]}"
	}
	uv pip install --python $(VENV)/bin/python --quiet --no-deps --no-build-isolation --offline $(MOVED) -e .
	[ "$$torch" != installed ] || $(VENV)/bin/python -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10) and "setup: torch " + torch.__version__ + " is installed; needed: 2.10 or later, or TORCH=cuda12")'
	# A download without .git: DVC would ask for a git repository.
	[ -e .git -a ! -L data -a ! -L reports ] || dvc config --local core.no_scm true
	echo "$$PWD/$(VENV)" > $@

always:

extras: $(EXTRAS)  ## Add Ray, W&B, TensorBoard, Lightning, LoRA, DeepSpeed

# DeepSpeed comes as sources alone. None of its C++ is built, and its set-up runs with the setuptools of the lock.
# An environment that was made anew has lost them.
$(EXTRAS): requirements-extras.lock $(READY)
	@DS_BUILD_OPS=0 DS_ACCELERATOR=cpu uv pip install --python $(VENV)/bin/python --quiet --compile-bytecode --require-hashes \
	  --no-build-isolation-package deepspeed -r requirements-extras.lock
	touch $@

test: check  ## Check, and all tests but the long ones
	@python -m tests

##@dev Prove: that what is said is right

test-fast: $(READY)  ## The quick answer: tests that take seconds
	@pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not alone"

test-all: check  ## All of make test, and the long ones
	@python -m tests --all

mutants: $(READY)  ## Wrong functions, and the first test that sees each
	@python -m tests.mutants

museum: $(READY)  ## Wrong speedups built on purpose, and who catches them
	@pytest tests/museum

##@dev Time: it, and what it stands beside

bench: $(READY)  ## Our step beside other ways to train
	@python -m benchmarks.throughput

bench-levers: $(READY)  ## What each lever brings: packing, compiling and more
	@python -m benchmarks.levers

bench-growth: $(READY)  ## How time and memory grow with rows, steps, epochs
	@python -m benchmarks.growth

lease-kit: $(READY)  ## What to carry to a machine with a card (.lease)
	@python -m benchmarks.gpu_day.kit

# Runs where little is installed: torch, transformers, numpy, scipy, safetensors and what `make lease-kit` made elsewhere.
gpu-day:  ## All that a card is wanted for: ARCHIVE=gpu-day.tgz
	@"$$PYTHON" -m benchmarks.gpu_day --prepared "$${PREPARED-.lease/prepared}" --archive "$${ARCHIVE-gpu-day.tgz}"

##@dev Develop: change ddp-compare itself

check: $(READY)  ## Lint, types, import rules, licences, vulnerabilities
	@$(MAKE) -j 2 --output-sync=target lint types imports licences

lint: $(READY)
	@ruff check . && ruff format --check .

types: $(READY)
	@mypy --num-workers 2

imports: $(READY)
	@lint-imports

licences: $(READY)  ## Licences of the packages, and known vulnerabilities
	@python -m tests.licences

lock: $(READY)  ## Resolve both lock files anew from pyproject.toml
	@uv pip compile --quiet --universal --generate-hashes --no-header --extra dev pyproject.toml -o requirements.lock
	python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*extras["deepspeed"], *extras["lightning"], *extras["lora"], *extras["ray"], *extras["tensorboard"], *extras["wandb"], sep="\n")' |
	  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu uv pip compile --quiet --universal --generate-hashes --no-header -c requirements.lock - -o requirements-extras.lock
	printf 'torch==2.10.*\ntorchvision\n' | uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  -c <(awk '/^[a-z]/ {on = !/$(TORCH_PACKAGES)/} on' requirements.lock) - | awk '/^[a-z]/ {on = /$(TORCH_PACKAGES)/} on' > requirements-cuda12.lock

golden: $(READY)  ## Write the texts of whole reports anew (tests/golden)
	@python -m tests.golden

gallery: $(READY)  ## Render the examples of docs/gallery again
	@for results in docs/gallery/*/results.json; do
	  python -m tasks.report --from-results "$$results" --reports "$${results%/*}"
	done

screens: $(READY)  ## Pictures of every screen: docs/gallery/screens/
	@python -m tests.screens docs/gallery/screens

nodes-demo: $(EXTRAS)  ## Two machines of a Ray cluster that are both this one
	@python -m tests.nodes_demo
