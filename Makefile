# The README's two commands are `make demo` and `make test`; each installs what it needs into .venv first.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes: none should compile the library again

.PHONY: demo demo-tuning test test-slow test-pairs test-flower test-ray test-wheel test-lowest test-all install lint docs site dist bench clean

# demo/tuned.json has the settings, as `make demo-tuning` wrote them.
demo: .venv/installed
	$(BIN)/fedloom compare --tuned demo --seeds 5 --no-personal --eval-every 0 --name demo

# Choose the demo's settings again, on validation data of seed 0: some minutes.
demo-tuning: .venv/installed-dev
	$(BIN)/fedloom tune --data digits --split shards:2 --clients 20 --fraction 0.2 --model cnn --rounds 15 \
	  --epochs 5 --batch 16 --schedule step --trials 16 --name demo-tuning \
	  --methods "fedavg; fedprox(mu=?); scaffold; fedbabu; fedfn; feddrplus(beta=?)"
	cp runs/demo-tuning/tuned.json demo/

test: .venv/installed-dev .venv/browser
	$(BIN)/pytest -n 2 -m "not slow and not pairs and not flower and not ray"

# Tests of more than a few seconds each, those of MLflow and Weights & Biases among them.
test-slow: .venv/installed-track .venv/installed-docs .venv/browser
	$(BIN)/pytest -n 2 -m slow

# Every sum of two parts but those of the ordinary tests, a sixteenth.
test-pairs: .venv/installed-dev
	$(BIN)/pytest -n 2 -m pairs tests/methods

# Real SuperLinks and SuperNodes on loopback, one after the other: they keep two cores busy for some minutes.
test-flower: .venv/installed-dev
	$(BIN)/pytest -m flower tests/deploy/flower

# A Ray cluster of two nodes on loopback.
test-ray: .venv/installed-dev
	$(BIN)/pytest -m ray tests/engine/backends

# The wheel in an environment of its own: the demo with one seed, and its page.
test-wheel: dist
	rm -rf .venv-wheel && $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd .venv-wheel && rm -rf runs && bin/fedloom compare --tuned $(CURDIR)/demo --seeds 1 --no-personal --eval-every 0 --name demo
	cd .venv-wheel && bin/fedloom report runs/demo -o page.html

# The lowest versions of all dependencies that pyproject.toml allows, in an environment of their own (Python 3.11).
LOWEST := tests/test_recipe.py tests/test_weights.py tests/cli tests/data tests/methods tests/engine tests/nets tests/runs tests/finished tests/studies tests/report/page/test_content.py
test-lowest: .venv-lowest/installed
	.venv-lowest/bin/pytest -n 2 -m "not slow and not pairs and not flower and not ray" $(LOWEST)

test-all: .venv/installed-dev .venv/browser
	$(BIN)/pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/docs_tables.py --check

# Tables of README.md and docs/ are generated from the code's registries.
docs: .venv/installed-dev
	$(BIN)/python scripts/docs_tables.py

# The documentation as a website, in site/; every link of it is checked.
site: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# What is published: a wheel and a source archive. `.venv/bin/twine upload dist/*` publishes them.
dist: .venv/installed-dev
	rm -rf dist build
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/twine check --strict dist/*

bench: .venv/installed
	$(BIN)/fedloom bench

install: .venv/installed

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/installed-dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ .venv/installed

.venv/installed-docs: .venv/installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,docs]"
	touch $@

.venv/installed-track: .venv/installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,track]"
	touch $@

.venv-lowest/installed: pyproject.toml requirements/lowest.txt
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check -c requirements/lowest.txt -e ".[privacy,tune]" \
	  pytest pytest-xdist hypothesis pillow
	touch $@

# The page is tested in Chromium: the machine's own, or else one that Playwright fetches; without any, those tests are skipped.
.venv/browser: .venv/installed-dev
	for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name > /dev/null && break; done \
	  || $(BIN)/playwright install chromium || echo "no Chromium: browser tests will be skipped"
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-wheel build dist runs site .mypy_cache .ruff_cache .pytest_cache
