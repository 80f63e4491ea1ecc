# `make train` and `make test` need nothing but Python 3.11+ and make: the first of them makes .venv.
#   ARGS    what follows the command:  make train ARGS="--steps 20"   make test ARGS="tests/rl -k losses"
#   PYTHON  the interpreter of a new .venv:  make setup PYTHON=python3.12

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed
# Interprets the kernels for GPUs in a test, in a folder of its own: PyTorch for CUDA brings the one that it was made for.
TRITON := 3.9.0

.PHONY: help setup system-tests-packages train test test-all check clean

help:
	@echo "make setup   create .venv and install the locked dependencies (the targets below do it when needed)"
	@echo "make train   teach a small policy arithmetic       ARGS=\"--steps 20\" goes to rlvf train"
	@echo "make test    the tests that one waits for          ARGS=\"tests/rl -x\" goes to pytest"
	@echo "make test-all   these and the slow ones, some on machines made up for them (root, Linux)"
	@echo "make check   format, lint and types"
	@echo "make clean   remove .venv and every cache; runs in .rlvf stay"

setup: $(STAMP)

# The commands in a .venv hold its path: in a copy of this folder they would run the other one's files, or nothing.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

# One shell, so that nothing is half done when a line fails; the stamp comes last. An existing .venv is brought up to date.
# uv installs in seconds what takes pip minutes; pip brings it where it is not, and has its turn itself where uv fails. uv does not read
# pip's settings (a mirror, a folder of wheels, a certificate) and is told them. What either has installed is compiled on all cores;
# packages' own tests are left to those who import them.
$(STAMP): pyproject.toml constraints.txt
	@set -ef; \
	if [ -f $(STAMP) ] && [ "$$(cat $(STAMP))" != "$(CURDIR)" ]; then \
	  echo "the .venv here is of another folder, of which this is a copy: it is made anew"; \
	  rm -rf .venv; \
	fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  command -v "$(PYTHON)" >/dev/null 2>&1 || \
	    { echo "make: no $(PYTHON) here; install Python 3.11 or newer, or name one: make setup PYTHON=python3.12" >&2; exit 1; }; \
	  "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: $$($(PYTHON) --version 2>&1) is too old; name Python 3.11 or newer: make setup PYTHON=python3.12" >&2; exit 1; }; \
	  echo "creating .venv with $$($(PYTHON) --version 2>&1)"; \
	  "$(PYTHON)" -m venv --clear .venv || \
	    { rm -rf .venv; echo "make: $(PYTHON) cannot create .venv (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }; \
	fi; \
	echo "installing the locked dependencies into .venv (a minute or two the first time)"; \
	what="-c constraints.txt -e .[8bit,dev,math,postgres,s3]"; \
	pip="$(BIN)/python -m pip --disable-pip-version-check"; \
	PATH="$$PATH:$(CURDIR)/$(BIN)"; command -v uv >/dev/null 2>&1 || $$pip install -qq -c constraints.txt uv || :; \
	eval "$$($$pip config list | LC_ALL=C sort -r | sed -nE \
	  -e 's/\\n/ /g' -e '/find-links/s/ /,/g' \
	  -e "s/^(global|:env:)\.index-url=('.*')$$/export UV_DEFAULT_INDEX=\2/p" \
	  -e "s/^(global|:env:)\.extra-index-url=('.*')$$/export UV_INDEX=\2/p" \
	  -e "s/^(global|:env:)\.find-links=('.*')$$/export UV_FIND_LINKS=\2/p" \
	  -e "s/^(global|:env:)\.cert=('.*')$$/export SSL_CERT_FILE=\2/p")"; \
	uv pip install -q --index-strategy unsafe-best-match --python $(BIN)/python $$what || \
	  { echo "without uv: some minutes"; $$pip install -qq --no-compile $$what; } || \
	  { echo "make: the dependencies could not be installed; why is said above. A network is needed, or what pip's settings name" >&2; exit 1; }; \
	$(BIN)/python -m compileall -qq -j 0 -x 'site-packages/.*/tests/' \
	  "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || :; \
	echo "$(CURDIR)" >$(STAMP); \
	echo "ready: $(BIN)/rlvf"

# What some tests use if it is there. Never fails: those tests say what they lack.
system-tests-packages:
	@lacking=; \
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || lacking="$$lacking postgresql"; \
	command -v bwrap >/dev/null 2>&1 || lacking="$$lacking bubblewrap"; \
	command -v faketime >/dev/null 2>&1 || lacking="$$lacking faketime"; \
	command -v fusermount3 >/dev/null 2>&1 || lacking="$$lacking fuse3"; \
	if [ -n "$$lacking" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$lacking; } >/dev/null 2>&1 || \
	    echo "make:$$lacking could not be installed; the tests that use it say so" >&2; \
	fi; \
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e .[reasoning-gym] >/dev/null 2>&1 || \
	  echo "make: reasoning-gym could not be installed; the tests that use it say so" >&2; \
	[ -d .venv/interpreted/triton-$(TRITON).dist-info ] || \
	  $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --upgrade --target .venv/interpreted triton==$(TRITON) >/dev/null 2>&1 || \
	  echo "make: triton could not be installed; the tests that use it say so" >&2

train: $(STAMP)
	@$(BIN)/rlvf train $(ARGS)

# A file's tests stay in one process, which starts its servers once; files in their order, those that take longest first. On two
# cores a third process uses what the others leave while they wait for something; slow tests leave less, and start whole clusters.
# What one process has compiled is not compiled again by the hundreds that tests start.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	@$(PYTEST) --numprocesses 3 -m "not slow" $(ARGS)

test-all: $(STAMP)
	@$(PYTEST) --numprocesses 2 $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find flows tasks rl infra tests -type d -name __pycache__ -prune -exec rm -rf {} +
	@echo "runs and their services' state are kept: remove .rlvf yourself if you want them gone"
