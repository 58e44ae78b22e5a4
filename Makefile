# Everything on a fresh machine: `make demo` and `make test`. Both make their own .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint clean

demo: $(STAMP)
	$(BIN)/python -m pytest notebooks tests/gpu --nbmake --runpod --runpod-provider=emulator --runpod-device=cpu --runpod-accuracy

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# torch first and alone, from pip's own index settings: a machine may keep a CPU build at hand, and nothing else shall pull another.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch==$${TORCH_VERSION:-2.13.0}"
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	$(BIN)/python -m pytest_runpod emulator --warm
	touch $(STAMP)

clean:
	rm -rf .venv build dist .pytest_runpod .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
