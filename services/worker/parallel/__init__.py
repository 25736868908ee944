"""Tensor parallelism: the worker process is rank 0 of a group and starts the others, which follow it step by step."""
