"""The house in one picture: rooms and their imports, as a Mermaid graph read from the code.

`python -m tests.architecture.drawing` writes it into docs/architecture.md.
"""

from __future__ import annotations

from tests.architecture.test_layers import MODULES, ROOT, imports

PAGE = ROOT / "docs" / "architecture.md"
FIRST, LAST = "```mermaid\n", "```\n"

EVERYWHERE = {"errors", "version", "lazy", "plugins"}
"""Modules of `fl_shuffle` that most others import: they would only fill the picture with lines."""
GROUND = {
    "attack_tolerances",
    "guarantee",
    "limits",
    "partial_shuffle_tolerances",
    "sum_tolerances",
    "tolerances",
}
"""Modules of `fl_shuffle.accounting` below all its rooms: drawn as one."""


def room(module: str) -> str | None:
    """The box in which a module is drawn; None if it is not."""
    parts = module.split(".")
    if parts[0] != "fl_shuffle":
        return parts[0]
    if len(parts) == 1 or parts[1] in EVERYWHERE:
        return None
    if parts[1] != "accounting":
        return parts[1]
    if len(parts) == 2:
        return None
    return "accounting.ground" if parts[2] in GROUND else f"accounting.{parts[2]}"


def arrows() -> dict[str, set[str]]:
    """Room -> rooms that it imports."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        source = room(name)
        if source is None:
            continue
        found.setdefault(source, set())
        for imported in imports(path):
            target = room(imported)
            if imported in MODULES and target not in (None, source):
                found[source].add(str(target))
    return found


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Every room that `start` imports, directly or through others."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def needed(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that others imply; no two rooms import each other."""
    for source in graph:
        assert source not in reachable(source, graph), f"{source} imports itself through others"
    return {
        source: {
            target
            for target in targets
            if not any(target in reachable(other, graph) for other in targets - {target})
        }
        for source, targets in graph.items()
    }


def drawing() -> str:
    """The graph as Mermaid text, accounting's rooms in a frame of their own."""
    graph = needed(arrows())
    inside = sorted(name for name in graph if name.startswith("accounting."))
    outside = sorted(set(graph) - set(inside))
    lines = ["graph TD"]
    lines += [f"    {_key(name)}[{name}]" for name in outside]
    lines += ["    subgraph accounting"]
    lines += [f"        {_key(name)}[{name.split('.')[1]}]" for name in inside]
    lines += ["    end"]
    for source in sorted(graph):
        lines += [f"    {_key(source)} --> {_key(target)}" for target in sorted(graph[source])]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name.replace(".", "_")


def page_with(picture: str, text: str) -> str:
    """The page with its picture replaced."""
    start = text.index(FIRST) + len(FIRST)
    end = text.index(LAST, start)
    return text[:start] + picture + text[end:]


if __name__ == "__main__":
    PAGE.write_text(page_with(drawing(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
