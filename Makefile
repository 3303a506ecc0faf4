# Everything runs in $(VENV). Written beside it: build/, dist/, and in netstack_gro/ the compiled
# modules.
#
#   make test PYTHON=python3.13             another interpreter (with VENV=... to keep both)
#   make test ARGS="-k order -x"            arguments for pytest
#   make demo NETSTACK_GRO_BUILD=compiled   fail where the hot modules cannot be compiled
#   make demo CC=/bin/false                 as on a machine without a C compiler

PYTHON ?= python3
VENV ?= .venv
NETSTACK_GRO_BUILD ?= auto
ARGS ?=
MINUTES ?= 10
MINORS ?= 11 12 13 14 15

export NETSTACK_GRO_BUILD
export PIP_DISABLE_PIP_VERSION_CHECK = 1

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet
# As activated: cython-lint and pyright look for their Python and its tools there.
ACTIVE := PATH="$(abspath $(VENV)/bin):$$PATH"

# What the compiled modules are made of: an edited source is shadowed by its old module.
C_TYPES := $(wildcard $(foreach folder,netstack_gro dispatchers,$(folder)/*.pxd $(folder)/*.h))
COMPILED_FROM := $(C_TYPES) $(patsubst %.pxd,%.py,$(filter %.pxd,$(C_TYPES))) netstack_gro/_speed.py

ASAN := build/asan
ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-interpreted test-all test-asan soak bench bench-peers \
  bench-io bench-embed bench-instructions lint format types docs build pcaps clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

# --- the virtual environment -------------------------------------------------------------------

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo >&2 "make: Python 3.11 or later is needed, and '$(PYTHON)' is not: name one, as in"; \
	  echo >&2 "      make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo >&2 "make: '$(PYTHON) -m venv' does not work here. On Debian and Ubuntu it is a package"; \
	  echo >&2 "      of its own: apt install python3-venv"; exit 1; }
	@$(PIP) install --upgrade "pip>=25.1"
	@touch $@

# Changes when the build is asked for in another way, so that the package is installed again.
$(VENV)/.build: $(VENV)/.made FORCE
	@echo '$(NETSTACK_GRO_BUILD) CC=$(if $(filter default,$(origin CC)),,$(CC))' > $@.now
	@if cmp -s $@.now $@; then rm $@.now; else mv $@.now $@; fi

$(VENV)/.installed: $(VENV)/.made $(VENV)/.build pyproject.toml setup.py $(COMPILED_FROM)
	@echo "installing netstack-gro into $(VENV) (compiling takes a minute or so)"
	@PYTHONWARNINGS="ignore:Compat editable installs" \
	  $(PIP) install --editable ".[cli]" --config-settings editable_mode=compat
	@touch $@

$(VENV)/.group-%: $(VENV)/.made pyproject.toml
	@echo "installing what '$*' needs into $(VENV)"
	@$(PIP) install --group $*
	@touch $@

venv: $(VENV)/.installed ## the virtual environment, with the package installed in place, compiled where it can be
	@$(PY) -c 'import netstack_gro as n; print("engine:", "compiled" if n.__compiled__ else "interpreted")'

# --- use ---------------------------------------------------------------------------------------

demo: venv ## replay a bundled capture: what was merged, and why the rest was not
	@$(VENV)/bin/netstack-gro replay pcaps/demo.pcapng

# --- tests -------------------------------------------------------------------------------------

test: venv $(VENV)/.group-test ## the whole suite at both speeds (ARGS are given to pytest)
	@if $(PY) -c 'import sys, netstack_gro; sys.exit(not netstack_gro.__compiled__)'; then \
	  echo "== compiled" && $(PY) -m pytest --engine=compiled $(ARGS) && \
	  echo "== interpreted" && \
	  NETSTACK_GRO_INTERPRETED=1 $(PY) -m pytest -m "not packaging and not engineless" $(ARGS); \
	else \
	  echo "== interpreted" && $(PY) -m pytest $(ARGS); \
	fi

test-interpreted: venv $(VENV)/.group-test ## the whole suite, interpreted only
	NETSTACK_GRO_INTERPRETED=1 $(PY) -m pytest $(ARGS)

test-all: ## the suite on every CPython from 3.11 on that is found here
	@found=; for minor in $(MINORS); do \
	  for python in python3.$$minor "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python3.$$minor; do \
	    $$python -c 'import sys, venv; sys.exit(sys.version_info.releaselevel != "final")' 2>/dev/null || continue; \
	    found="$$found 3.$$minor"; \
	    echo "== $$($$python --version)"; \
	    $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-3.$$minor ARGS="$(ARGS)" || exit 1; \
	    break; \
	  done; \
	done; echo "passed on:$$found"; test -n "$$found"

test-asan: venv $(VENV)/.group-test ## the suite once, compiled with AddressSanitizer and UBSan
	@rm -rf $(ASAN) && mkdir -p $(ASAN)
	@cp -a netstack_gro dispatchers tests examples benchmarks pyproject.toml setup.py MANIFEST.in *.md LICENSE $(ASAN)
	@rm -f $(ASAN)/netstack_gro/*.so $(ASAN)/dispatchers/*.so
	@ln -s $(CURDIR)/pcaps $(ASAN)/pcaps
	@ln -sfn $(CURDIR)/../shared build/shared
	cd $(ASAN) && NETSTACK_GRO_BUILD=compiled CFLAGS="-O1 -g $(ASAN_FLAGS)" \
	  LDFLAGS="$(ASAN_FLAGS)" $(abspath $(PY)) setup.py --quiet build_ext --inplace
	@# --capture=sys: a report goes past Python, and would be lost with the process. Left out is what
	@# runs no compiled code or none that other tests do not, and what measures time or memory.
	cd $(ASAN) && \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	  PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 NETSTACK_GRO_TEST_PACKETS=8000 \
	  $(abspath $(PY)) -m pytest --capture=sys --engine=compiled \
	    -m "not packaging and not engineless and not (live and slow)" --ignore=tests/test_soak.py \
	    --ignore=tests/test_dispatcher_lifecycle.py \
	    $(foreach name,adapters bench capture cli docs examples probe verify,--ignore-glob='tests/test_$(name)*.py') \
	    --ignore=tests/test_bounds.py --ignore=tests/test_hash_flood.py --ignore=tests/test_memory.py \
	    --ignore=tests/test_kernel_oracle.py --ignore=tests/test_shared_captures.py $(ARGS)

soak: venv $(VENV)/.group-test ## ten minutes of full load: is memory flat? (Linux, root; MINUTES=N)
	@$(PY) -m tests.soak --seconds $$(($(MINUTES) * 60))

# --- benchmarks --------------------------------------------------------------------------------

bench: venv $(VENV)/.group-bench ## what the engine costs a packet, beside memcpy and the best checksum in C
	@$(PY) -m benchmarks.engine $(ARGS)

bench-peers: venv $(VENV)/.group-test ## the same traffic through DPDK, gVisor, wireguard-go and dpkt
	@$(PY) -m benchmarks.peers $(ARGS)

bench-io: venv $(VENV)/.group-test ## reading from and writing to a running kernel, merging and not (Linux, root)
	@$(PY) -m benchmarks.io $(ARGS)

bench-embed: venv $(VENV)/.group-test ## inside stacks of others, merging and not (Linux, root)
	@$(PY) -m benchmarks.embed $(ARGS)

bench-instructions: venv ## instructions a packet, beside those recorded (valgrind)
	@$(PY) -m benchmarks.instructions $(ARGS)

# --- checks ------------------------------------------------------------------------------------

lint: $(VENV)/.group-lint ## ruff and cython-lint
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(ACTIVE) cython-lint $(filter %.pxd,$(C_TYPES))

format: $(VENV)/.group-lint ## rewrite the sources as ruff formats them
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

types: venv $(VENV)/.group-lint ## mypy, and pyright's check of the public types
	$(PY) -m mypy --strict -p netstack_gro
	$(ACTIVE) pyright --verifytypes netstack_gro --ignoreexternal

docs: $(VENV)/.group-docs ## the pages of docs/, with the reference, in build/site
	NO_MKDOCS_2_WARNING=1 $(ACTIVE) mkdocs build --quiet --strict

build: $(VENV)/.group-build ## sdist and wheel, in dist/
	@rm -rf dist
	$(PY) -m build --outdir dist

pcaps: venv $(VENV)/.group-test ## record the captures of pcaps/ again (Linux, root)
	$(PY) -m pcaps.record

clean: ## remove what the other targets made
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(foreach folder,netstack_gro dispatchers,$(folder)/*.so $(folder)/*.pyd)
	find netstack_gro dispatchers tests pcaps -name __pycache__ -type d -exec rm -rf {} +
