"""The bare definitions of a release's structs, as one module: its old readers, without the rest of its code."""

import ast

HEADER = '''"""Structs of release {release} as they were. Made by tests.wire.freeze; never edited."""

from typing import Annotated, Any, Literal

import msgspec

'''


def schema_source(release: str, sources: list[str]) -> str:
    """Text of a module with all struct classes, constants and type aliases of these modules, in their order."""
    kept: list[ast.stmt] = []
    for source in sources:
        kept += [statement for statement in ast.parse(source).body if _is_wanted(statement)]
    for statement in kept:
        if isinstance(statement, ast.ClassDef):
            statement.body = [part for part in statement.body if isinstance(part, ast.AnnAssign)] or [ast.Pass()]
    return HEADER.format(release=release) + "\n\n".join(ast.unparse(statement) for statement in kept) + "\n"


def _is_wanted(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.ClassDef):
        return any(ast.unparse(base) == "msgspec.Struct" for base in statement.bases)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id[0].isupper()
    return False
