# Two commands do everything on a fresh machine with Python 3.11, git and make:
#   make demo   trains FedAvg and FedBasis on the embedded data, serves every new client, writes report.html and fit.html
#   make test   runs all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed

export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test fuzz lint types docs bench bench-peers clean
.DELETE_ON_ERROR:

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[edge]'
	touch $@

$(STAMP): $(BASE)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(BASE)
	$(BIN)/fedbasis demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

fuzz: $(STAMP)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz --count 2750

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

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
	rm -rf $(VENV) $(PEERS) dist runs site report.html fit.html
