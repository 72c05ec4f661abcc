# Two commands do everything on a fresh machine with Python 3.11, git and make:
#   make demo   trains FedAvg and FedBasis on the embedded data, serves every new client, writes report.html
#   make test   runs all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test test-federation lint types bench bench-peers clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/fedbasis demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile

# Flower needs older releases of what everything else uses, so its tests have an environment of their own.
FEDERATION := .venv-federation
$(FEDERATION)/.installed: pyproject.toml constraints.txt
	test -x $(FEDERATION)/bin/python || $(PYTHON) -m venv $(FEDERATION)
	$(FEDERATION)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,flower]'
	touch $@

test-federation: $(FEDERATION)/.installed
	FEDBASIS_FEDERATION=1 OMP_NUM_THREADS=1 $(FEDERATION)/bin/python -m pytest tests/test_flower.py tests/test_federation.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/all.py

PEERS := .venv-peers
$(PEERS)/.installed: pyproject.toml constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	for peer in pfl 'flwr[simulation]'; do \
	  $(PEERS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "$$peer" || echo "$$peer cannot be installed here"; \
	done
	touch $@

bench-peers: $(PEERS)/.installed
	$(PEERS)/bin/python benchmarks/peers/run.py

clean:
	rm -rf $(VENV) $(PEERS) $(FEDERATION) dist runs report.html
