# Recipes of Tokenbus. `./just` makes the environment first; each recipe does all its own set-up.

python := ".venv/bin/python"

# List the recipes
default:
    @{{ quote(just_executable()) }} --list --unsorted

# Make .venv with all that running and developing needs
setup: _dev

# Start everything, ask the model one question, stream the answer, stop everything
demo: _run
    @.venv/bin/tokenbus demo

# Serve until Ctrl-C; options go to `tokenbus up`, e.g. `./just up --port 8080`
up *options: _run
    @.venv/bin/tokenbus up {{ options }}

# The tests of every change
test *options: _dev
    @{{ python }} -m pytest -m "not full" {{ options }}

# All tests, the long ones too
test-full *options: _dev
    @{{ python }} -m pytest {{ options }}

# Lint, format, types and layers
check: _dev
    @{{ python }} -m ruff check .
    @{{ python }} -m ruff format --check .
    @{{ python }} -m mypy --strict services shared kernels deploy
    @.venv/bin/lint-imports

_run:
    @sh deploy/setup/venv.sh && {{ python }} deploy/setup/environment.py run

_dev:
    @sh deploy/setup/venv.sh && {{ python }} deploy/setup/environment.py dev
