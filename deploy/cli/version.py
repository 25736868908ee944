"""`tokenbus version`."""

from shared.micro import package_version


def main(argv: list[str]) -> int:
    """Print the version; always 0."""
    print(f"tokenbus {package_version()}")
    return 0
