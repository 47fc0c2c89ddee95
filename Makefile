# make demo    a real answer through every real part, in the terminal
# make test    everything that must hold: checks, unit, conformance and packaging tests
# make check   the quick half: ruff, mypy, layers
# make proto   regenerate the stubs with the floor of the declared ranges
# make bench   measure the product beside others: 80 minutes, results in bench-results
# make clean   remove the environments
#
# PYTHON=python3.13 make test      choose the interpreter; otherwise the first that fits
# TESTS="tests/shm -k torn"        choose tests; otherwise all, shared among 4 workers (-n 0: none)
# make bench BENCH="paced --quick" choose what to measure; BENCH=list names all

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test check proto bench clean tools bench-tools

VENV := .venv
BIN := $(VENV)/bin
TESTS ?=
# Arguments for `rrpa demo`: make demo DEMO="--prompt 'Why is the sky blue?' --stay"
DEMO ?=
# Arguments for `python -m benchmarks`: make bench BENCH="all --quick --to elsewhere"
BENCH ?= all

# A Python that is new enough and can make environments (Debian splits ensurepip off).
FITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 /usr/local/bin/python3; do \
	  if $$p -c '$(FITS)' >/dev/null 2>&1; then echo $$p; break; fi; done)

help:
	@sed -n '/^# make/s/^# //p' Makefile

$(VENV)/.made:
	@if ! $(or $(PYTHON),false) -c '$(FITS)' 2>/dev/null; then \
	  echo "$(or $(PYTHON),nothing) is no Python 3.11 to 3.13 with the venv module; install one, or set PYTHON=..." >&2; exit 1; fi
	@echo "environment: $(VENV), $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# One install per extra and per content of pyproject.toml; sources are used in place (-e).
# pip's own words go to a log; people see the names of the packages as they come, which awk
# would keep to itself until its buffer is full.
$(VENV)/.installed-%: $(VENV)/.made pyproject.toml
	@echo "install: rrpa-sidecar[$*] into $(VENV)"
	@$(BIN)/python -m pip install --progress-bar off -e '.[$*]' 2>$(VENV)/install.err \
	  | tee $(VENV)/install.log \
	  | { col=0; while read -r what name more; do case "$$what $$name $$more" in \
	      "Installing build"*started) echo "  the build's own tools";; \
	      Collecting*) name="  $${name%%[!A-Za-z0-9_.-]*}"; col=$$((col + $${#name})); \
	        if ((col > 79)); then echo; col=$${#name}; fi; printf '%s' "$$name";; \
	      "Installing collected"*) if ((col)); then echo; fi; echo "  unpacking";; esac; done; } \
	  || { tail -30 $(VENV)/install.log >&2; grep -v 'is ignored: it is neither' $(VENV)/install.err >&2; \
	       echo "install failed; all of it: $(VENV)/install.log" >&2; exit 1; }
	@touch $@

demo: $(VENV)/.installed-demo
	@$(BIN)/rrpa demo $(DEMO)

test: $(VENV)/.installed-test tools
	@$(BIN)/python -m pytest -n auto $(TESTS)

check: $(VENV)/.installed-test
	@$(BIN)/python -m pytest -q tests/test_checks.py tests/test_layers.py

# Installs the packages in the shell's $$missing, and names them as they come. $(1): what follows
# when that fails, which is no failure of make.
define apt-install
if [ -n "$$missing" ]; then \
	  missing="$${missing# }"; echo "install: $$missing (Debian)"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	      apt-get install -y -q --no-install-recommends $$missing 2>&1 \
	      | sed -un -e 's/^Unpacking \([^ ]*\).*/  \1/p' -e '/^E: /p'; } \
	    || echo "not installed, $(1): $$missing" >&2; fi
endef

# What the tests use and PyPI does not carry. Without a C compiler and nghttp2's headers, which
# the load client of benchmarks/ is made with, some tests are skipped.
tools:
	@missing=""; command -v curl >/dev/null || missing="curl"; \
	command -v cc >/dev/null || missing="$$missing gcc libc6-dev"; \
	echo '#include <nghttp2/nghttp2.h>' | cc -E - >/dev/null 2>&1 || missing="$$missing libnghttp2-dev"; \
	$(call apt-install,the tests go on without)

bench: $(VENV)/.installed-bench bench-tools
	@$(BIN)/python -m benchmarks $(BENCH)

# The load client needs the first three, the C++ peer all; `pkg-config` is asked, not dpkg, since
# other systems have the same under other names.
bench-tools:
	@missing=""; command -v cc >/dev/null || missing="gcc libc6-dev"; \
	command -v pkg-config >/dev/null || missing="$$missing pkg-config"; \
	pkg-config --exists libnghttp2 2>/dev/null || missing="$$missing libnghttp2-dev"; \
	command -v g++ >/dev/null || missing="$$missing g++"; \
	pkg-config --exists grpc++ 2>/dev/null || missing="$$missing libgrpc++-dev"; \
	pkg-config --exists protobuf 2>/dev/null || missing="$$missing libprotobuf-dev"; \
	command -v grpc_cpp_plugin >/dev/null || missing="$$missing protobuf-compiler-grpc"; \
	$(call apt-install,what needs them is left out)

proto: $(VENV)/.installed-test
	@$(BIN)/python -m tests.packaging.environments floor-tools .venv-floor
	@.venv-floor/bin/python proto/generate.py
	@git --no-pager diff --stat -- src/rrpa_sidecar/pb || true

clean:
	rm -rf $(VENV) .venv-floor benchmarks/.build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
