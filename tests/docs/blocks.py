"""The code blocks of a page, and running them as a reader would, from top to bottom.

Python blocks of a page share one namespace, and all its blocks one working directory. A block whose
first line is `# file: name` is that file. Lines that start with `fl-shuffle` are
run through the command line; the word RUN stands for the newest run below `runs`. A comment above a
block says what is different about it:

    <!-- smaller: --rounds 1 -->     these options are added, so that the tests stay quick
    <!-- not run: reason -->         why the block cannot be run here
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_shuffle.cli import main

BLOCK = re.compile(
    r"(?:<!-- (?P<kind>smaller|not run): (?P<note>.*?) -->\n)?"
    r"^```(?P<language>\w+|\{[\w-]+\})\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# file: (\S+)\n")
RUN = ("python", "sh", "toml", "csv")
SHOWN = (
    "text",
    "mermaid",
    "sql",
    "json",
    "html",
    "{toctree}",
    "{eval-rst}",
    "{all-commands}",
    "{all-settings}",
)
"""Blocks that are output, drawings, questions to another program, or orders to Sphinx."""


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    smaller: tuple[str, ...] = ()
    excuse: str = ""

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is one."""
        named = FILE.match(self.body)
        if named is None:
            return None
        return named[1] + (".py" if self.language == "python" else "")

    @property
    def asks_a_run(self) -> bool:
        return self.language == "sh" and re.search(r"\bRUN\b", self.body) is not None


def blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        note = found["note"] or ""
        yield Block(
            found["language"],
            found["body"],
            smaller=tuple(shlex.split(note)) if found["kind"] == "smaller" else (),
            excuse=note if found["kind"] == "not run" else "",
        )


def newest_run() -> str:
    runs = [ledger.parent for ledger in Path("runs").glob("*/ledger.sqlite")]
    return str(max(runs, key=lambda path: path.stat().st_mtime))


def commands(body: str) -> Iterator[list[str]]:
    """The commands of a shell block, comments and line continuations taken away."""
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace("[RUN ...]", ""), comments=True)
        if words:
            yield [re.sub(r"^RUN(?=/|$)", lambda _: newest_run(), word) for word in words]


def run(block: Block, names: dict[str, Any]) -> None:
    """Run one block in the working directory; what fails raises."""
    if block.file is not None:
        # The first line of a CSV file is its header: the name was for the reader.
        body = block.body.partition("\n")[2] if block.file.endswith(".csv") else block.body
        Path(block.file).parent.mkdir(exist_ok=True)
        Path(block.file).write_text(body, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.body, "<block>", "exec"), names)
    else:
        for words in commands(block.body):
            assert words[0] == "fl-shuffle", f"only fl-shuffle is run here: {words}"
            try:
                code: object = main([*words[1:], *block.smaller])
            except SystemExit as done:  # after --help
                code = done.code
            assert code == 0, words
