# Recipes of Tokenbus. `./just` makes the environment first; each recipe does all its own set-up.

python := ".venv/bin/python"

# most tests wait for processes; the files of each worker stay together, and so do the nodes that a file starts
parallel := "-n logical --maxprocesses 4 --dist loadfile"

# List the recipes
default:
    @{{ quote(just_executable()) }} --list --unsorted

# Make .venv with all that running and developing needs
setup: _dev

# Start everything, ask the model one question, stream the answer, stop everything
[no-exit-message]
demo: _run
    @exec .venv/bin/tokenbus demo

# Serve until Ctrl-C (which just remarks on, with exit status 130); options go to `tokenbus up`, e.g. `./just up --port 8080`
[no-exit-message]
up *options: _run
    @exec .venv/bin/tokenbus up {{ options }}

# The tests of every change; property tests try the same examples each time
test *options: _dev
    @exec {{ python }} -m pytest -m "not full" --hypothesis-profile repeatable {{ parallel }} {{ options }}

# All tests, the long ones too; property tests draw new examples each time
test-full *options: _dev
    @exec {{ python }} -m pytest {{ parallel }} {{ options }}

# Faults on real processes, and docs/reliability.md made anew; `./just chaos --hours 0.5 --faults none` soaks; `--help`
[no-exit-message]
chaos *options: _run
    @exec {{ python }} -m tests.chaos --json bench/results/chaos.json --write docs/reliability.md {{ options }}

# Measure this machine within some minutes, into bench/results or `--result-dir DIR`; `--help` lists other measurements
[no-exit-message]
bench *options="suite": _run
    @exec .venv/bin/tokenbus bench {{ options }}

# Check and time everything on this machine's GPU, in under 8 minutes; `--dry-run` does what needs no GPU (docs/gpu.md)
[no-exit-message]
gpu-check *options:
    @exec sh deploy/setup/gpu_check.sh {{ options }}

# Download what a machine with a GPU and without a network lacks for gpu-check, into .gpu-wheels
gpu-wheels: _run
    @exec {{ python }} deploy/setup/gpu_wheels.py

# Lint, format, types and layers
check: _dev
    @{{ python }} -m ruff check .
    @{{ python }} -m ruff format --check .
    @{{ python }} -m mypy --strict services shared kernels deploy bench
    @.venv/bin/lint-imports

_run:
    @sh deploy/setup/venv.sh && {{ python }} deploy/setup/environment.py run

_dev:
    @sh deploy/setup/venv.sh && {{ python }} deploy/setup/environment.py dev
