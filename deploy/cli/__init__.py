"""The `tokenbus` command."""
