"""The subcommands of `tokenbus bench`; each has main(argv), which returns the exit status."""
