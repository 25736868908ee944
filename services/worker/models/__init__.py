"""The model families the engine runs, one file each, on shared layers. registry.py finds a family's file."""
