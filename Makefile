# dockless: everything a developer types. `make` alone lists it.
#
# A fresh clone needs Python 3.11 or newer with venv and headers, gcc and a package index:
#   apt-get install gcc make python3-dev python3-venv
# Everything else goes into .venv. PYTHON=… picks an interpreter, CC=… a compiler, ARGS=… goes to pytest, bench or the VM.

# The repository root holds a folder called `sched`: it must never hide the standard library's.
export PYTHONSAFEPATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

suitable = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do if $(call suitable,$$p); then echo $$p; break; fi; done)
V := .venv
PY := $(V)/bin/python
PIP := $(PY) -m pip --quiet --quiet
NATIVE := $(wildcard native/*.c native/*.h native/*/*.c native/*/*.h native/build.py) setup.py
FILTERS := $(wildcard sandbox/seccomp/*.py sandbox/seccomp/profiles/*.json) sandbox/capabilities.py base/syscalls.py
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv build demo test test-vm test-service power-cut bench-users bench bench-images bench-sched bench-slurm crash-matrix faults fuzz hunt walk mutants check format wheel clean clean-all preflight

help:  ## this list
	@echo "dockless: make <target>"
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

demo: build  ## two users' jobs queue, get (simulated) GPUs by quota, run in real sandboxes, finish
	@$(PY) -m dockless.demo $(ARGS)

test: build  ## all tests that can run here; what cannot says why. ARGS="tests/unit -k name"
	@$(PY) -m pytest $(or $(ARGS),tests)

test-vm: build  ## the suite in a QEMU guest with a real cgroup v2 tree, as root and as a user
	@tests/vm/run.sh $(ARGS)

test-service: build  ## the daemon as a service of systemd in a QEMU guest, over a reboot; minutes
	@DOCKLESS_VM_AS=systemd tests/vm/run.sh

power-cut: build  ## the power of a QEMU guest is cut while its daemon works, minutes; DOCKLESS_VM_CUTS=12
	@DOCKLESS_VM_AS=power tests/vm/run.sh

bench-users: build  ## in a QEMU guest: the speed of one user's job beside another's hogs, fork bomb, floods and full disk; minutes
	@DOCKLESS_VM_AS=two-users tests/vm/run.sh

bench: build  ## starts beside crun, bwrap, podman and a C program; JSON in benchmarks/results
	@$(PY) benchmarks/run.py $(ARGS)

fuzz: build $(V)/.fuzz  ## fuzz what reads strangers' bytes; FUZZ_SECONDS=60 each, ARGS="tar writer" for some; docs/fuzzing.md
	@$(PY) -P tests/fuzz/run.py --seconds $(or $(FUZZ_SECONDS),60) $(ARGS)

faults: build  ## each write of each operation on a failing disk (root); ARGS="--most 3 --only pull"; docs/faults.md
	@$(PY) -P tests/faults/run.py $(ARGS)

mutants: build  ## change the program a little: does a test notice? ARGS="--package sched --count 20 --seed 7"; docs/mutants.md
	@$(PY) -P tests/mutants/run.py $(ARGS)

hunt: build  ## random hostile images and options against canaries; HUNT_SECONDS=60, ARGS="--seed WORD"; docs/hunt.md
	@$(PY) -P tests/hunt/run.py --seconds $(or $(HUNT_SECONDS),60) $(ARGS)

walk: build  ## random operations of the API from threads and loops, processes killed; STEPS=10000, ARGS="--seed WORD"; docs/walk.md
	@$(PY) -P tests/walk/run.py --steps $(or $(STEPS),10000) $(ARGS)

bench-images: build  ## images of real size beside umoci, skopeo, podman, containerd; a first time makes the image (root)
	@$(PY) benchmarks/images.py $(ARGS)

bench-sched: build  ## the policy on public traces: packing, waiting times; ARGS="--traces DIR packing", minutes
	@$(PY) benchmarks/scheduling.py $(ARGS)

bench-slurm: build  ## beside Debian's Slurm: submits, passes, starts, restarts, kill -9 (root); ARGS="--only kills --kills 20"
	@$(PY) benchmarks/beside_slurm.py $(ARGS)

crash-matrix: build  ## kill -9 of daemon and keepers, and a full disk, at every call that changes something (root); ARGS="--most 50"
	@$(PY) benchmarks/crash_matrix.py $(ARGS)

check: build $(V)/.dev  ## ruff format and lint, mypy --strict, pyright on examples and public names, layering
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(PY) -m mypy examples tests/typed
	@$(PY) -m pyright
	@$(PY) -m pytest -q tests/unit/test_layering.py

format: $(V)/.dev  ## let ruff format and fix
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

venv: $(V)/.venv  ## .venv with what the build and the tests need

build: $(V)/.built  ## the native part, and dockless installed editable in .venv

wheel: build  ## sdist, and the wheel built from it, in dist/
	@rm -rf dist
	@$(PIP) install build
	@$(PY) -m build --outdir dist . >dist.log 2>&1 || { cat dist.log; exit 1; }
	@rm -f dist.log
	@ls dist

clean:  ## remove what was built
	@rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -rf native/*.so native/*.o native/_native.c native/dockless-launcher native/dockless-agent native/simulated sandbox/seccomp/built $(V)/.built
	@find . -path ./$(V) -prune -o -name __pycache__ -type d -print | xargs rm -rf

clean-all: clean  ## and .venv; the VM's cache is ~/.cache/dockless-vm
	@rm -rf $(V)

# ---- how ------------------------------------------------------------------------------------------------------------------------------

preflight:
	@if [ -z "$(PYTHON)" ] || ! $(call suitable,$(PYTHON)); then \
	  echo "dockless needs Python 3.11 or newer; '$(or $(PYTHON),python3)' is $$($(or $(PYTHON),python3) --version 2>&1 | tail -n 1)."; \
	  echo "  hint: Debian 12 and Ubuntu 24.04 have it (apt-get install python3); or make PYTHON=/path/to/python3.12"; exit 1; fi
	@missing=; version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	if ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then echo "$(PYTHON) has no venv module with pip."; missing="$$missing python$$version-venv"; fi; \
	if ! $(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_config_var("INCLUDEPY") + "/Python.h"))'; then \
	  echo "Python's C headers are missing."; missing="$$missing python$$version-dev"; fi; \
	if ! command -v $${CC:-gcc} >/dev/null; then echo "There is no C compiler ($${CC:-gcc})."; missing="$$missing gcc libc6-dev"; \
	elif ! echo '#include <errno.h>' | $${CC:-gcc} -E - >/dev/null 2>&1; then echo "The C library's headers are missing."; missing="$$missing libc6-dev"; fi; \
	if [ -n "$$missing" ]; then echo "  hint: apt-get install$$missing"; exit 1; fi

# The environment is made anew only when it is not there; packages follow pyproject.toml.
$(PY):
	@$(MAKE) --no-print-directory preflight
	@echo "make: $(V) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(V) || { rm -rf $(V); exit 1; }

$(V)/.venv: pyproject.toml | $(PY)
	@echo "make: packages for build and tests"
	@$(PIP) install 'setuptools>=77' wheel 'cffi>=1.16'
	@touch $@

$(V)/.dev: pyproject.toml | $(V)/.built
	@echo "make: packages for the checks"
	@$(PIP) install --no-build-isolation -e '.[test,dev]'
	@touch $@

$(V)/.fuzz: pyproject.toml | $(V)/.built
	@echo "make: packages for fuzzing"
	@$(PIP) install --no-build-isolation -e '.[test,fuzz]' || echo "make: no atheris here: the parsers written in Python are left out"
	@touch $@

# The first time pip installs the package editable (a plain .pth to src/); afterwards only the C part is compiled again.
$(V)/.built: pyproject.toml $(NATIVE) $(FILTERS) | $(V)/.venv
	@echo "make: building"
	@if [ ! -e $(V)/.installed ] || [ pyproject.toml -nt $(V)/.installed ]; then \
	  $(PIP) install --no-build-isolation -e '.[test]' && touch $(V)/.installed; \
	else $(PY) -W ignore setup.py --quiet build_ext --inplace; fi
	@touch $@
