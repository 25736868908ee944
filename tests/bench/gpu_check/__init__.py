"""Tests of `./just gpu-check`."""
