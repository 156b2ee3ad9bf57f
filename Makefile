# Every target sets up what it needs: Python 3.11 or newer is enough to start.
#   make serve       chat with a real model at http://127.0.0.1:8000   (PORT=8001 for another port)
#   make serve-cluster  the same from several replicas, over Ray   (REPLICAS=3 for another number; installs Ray)
#   make test        the whole test command
#   make setup       only the environment, in .venv
#   make notebooks   open the book in Jupyter
#   make book        the book as web pages, in _book
#   make bench       measure the current stack, for a row on the scoreboard

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
REPLICAS ?= 2
PY := .venv/bin/python
# idle threads sleep, though not at once; chapters/__init__.py says why
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 20000

.PHONY: serve serve-cluster test setup notebooks book bench
.DEFAULT_GOAL := serve

setup:
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here. Install Python 3.11 or newer, or name yours: make setup PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) chapters/bootstrap.py

serve: setup
	@exec $(PY) -m shared.serving --host $(HOST) --port $(PORT)

serve-cluster: setup
	@$(PY) -c "import ray.serve" 2>/dev/null || $(PY) -m pip install -q -e ".[scale]"
	@exec $(PY) -m shared.serving.cluster --replicas $(REPLICAS) --host $(HOST) --port $(PORT)

# first the book as it is given, its exercises to do; then everything on the answers, in copies (chapters/solved.py)
test: export PYTHONDONTWRITEBYTECODE :=  # hundreds of processes: the second one of a kind need not compile the book
test: setup
	$(PY) -m chapters build --check
	$(PY) -m chapters claims --check
	$(PY) -m chapters verify
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --judges-only tests/book tests/ch*
	$(PY) -m chapters test-solved

notebooks: setup
	@exec $(PY) -m jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root)

book: setup
	@$(PY) -c "import furo, myst_nb" 2>/dev/null || $(PY) -m pip install -q -e ".[book]"
	@exec $(PY) -m chapters book

bench: setup
	@exec $(PY) -m chapters bench
