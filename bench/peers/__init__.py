"""What a user would pick instead, started and measured in turn with ours: `python -m bench.peers --help`."""
