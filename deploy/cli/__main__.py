"""`python -m deploy.cli`: the command `tokenbus` where it is not installed."""

from deploy.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
