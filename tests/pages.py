"""Pages of the documentation, their blocks, and a reader who types what they say.

A block begins with three backticks, its language and perhaps one of :data:`REASONS`: why no test runs it. Blocks of
programs and commands without a reason are run by the test that :data:`RUN_BY` names. A block with a title,
``python title="thumbs.py"``, is a file: it is written, and a later block runs or reads it. ``tests/docs/test_links.py``
checks that no block is left out.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Container, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.servers.processes import run_to_end
from tests.servers.served import Served, environment

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent


PROGRAMS = {"python", "sh", "sql", "cql", "dockerfile"}
"""Languages of blocks that are run."""
DATA = {"toml", "json", "ini", "yaml", "html", "javascript", "nginx", "caddyfile"}
"""Languages of blocks that are parsed, or that a test of the page uses."""
REASONS = {
    "service": "starts the service, which the test has started",
    "cassandra": "needs a Cassandra cluster",
    "zookeeper": "needs ZooKeeper servers",
    "spark": "needs Spark, and most often minutes",
    "docker": "needs Docker",
    "kubernetes": "needs a Kubernetes cluster",
    "root": "changes the machine, as root",
    "long": "takes minutes, or goes on until it is stopped",
    "fragment": "needs what only the reader has: names, files, addresses, tokens",
}
"""Reasons for not running a program."""
TEXTS = {
    "picture": "drawn with letters",
    "sample": "the form of something whose values differ each time",
    "output": "what a program prints, which a test compares",
}
"""Marks of blocks of the language ``text``, with their meanings."""
TYPED = "tests/acceptance/test_commands_of_pages.py"
RUN_BY = {
    "README.md": {
        "Start": "tests/cli/test_docs.py",
        "Three ways to read a queue": "tests/cli/test_docs.py, tests/acceptance/test_docs.py, tests/qdo/test_docs.py",
    },
    "docs/access.md": {"": TYPED},
    "docs/api.md": {"": "tests/app/test_reference.py"},
    "docs/api-groups.md": {"": "tests/app/test_reference.py"},
    "docs/api-jobs.md": {"": "tests/app/test_reference.py"},
    "docs/api-messages.md": {"": "tests/app/test_reference.py"},
    "docs/api-queues.md": {"": "tests/app/test_reference.py"},
    "docs/claims.md": {"": "tests/acceptance/test_docs.py"},
    "docs/claims-kinds.md": {"": "tests/acceptance/test_docs.py"},
    "docs/claims-limits.md": {"": "tests/acceptance/test_docs.py"},
    "docs/claims-loop.md": {"": "tests/acceptance/test_docs.py"},
    "docs/claims-operations.md": {"": "tests/acceptance/test_docs.py"},
    "docs/cli.md": {"": TYPED},
    "docs/client.md": {"": "tests/client/test_docs.py"},
    "docs/compat/curator.md": {"": "tests/qdo/curator/queues/test_docs.py"},
    "docs/compat/emodb.md": {"": TYPED},
    "docs/compat/sqs.md": {"": TYPED},
    "docs/embedded.md": {"": "tests/embedded/test_page.py"},
    "docs/extending.md": {"": "tests/acceptance/gateway/test_other_servers.py"},
    "docs/groups.md": {"": "tests/acceptance/test_docs.py"},
    "docs/index.md": {"": "tests/qdo/test_docs.py"},
    "docs/inbox.md": {"": "tests/javascript/test_chromium.py"},
    "docs/install.md": {"As a tool": "tests/dist/test_tools.py"},
    "docs/moves.md": {"": TYPED},
    "docs/operations-cassandra.md": {
        "Backup and restore": "tests/deploy/test_backup.py",
        "Passwords and TLS": "tests/deploy/test_cassandra_samples.py",
    },
    "docs/operations.md": {"Backup and restore": "tests/acceptance/test_docs.py", "Keys": TYPED},
    "docs/pipeline.md": {"Pipe": "tests/spark/pipeline/test_pipe.py"},
    "docs/qdo.md": {"": "tests/qdo/test_docs.py"},
    "docs/qdo-cli.md": {"": TYPED},
    "docs/moving-from-kafka.md": {"": "tests/qdo/test_docs.py"},
    "docs/qdo-tutorial.md": {"": "tests/qdo/test_docs.py"},
    "docs/schedules.md": {"": TYPED},
    "docs/spark.md": {
        "Start": "tests/spark/test_docs.py",
        "Read": "tests/spark/test_docs.py",
        "Streaming": "tests/spark/test_streaming.py",
        "Write": "tests/spark/test_docs.py",
    },
    "docs/moving-from-celery.md": {"": "tests/qdo/test_docs.py"},
    "docs/tasks.md": {"": "tests/qdo/test_docs.py"},
    "docs/testing-your-app.md": {"": "tests/testing/test_page.py"},
    "docs/tutorial.md": {"": "tests/acceptance/test_docs.py"},
    "docs/users.md": {"": "tests/acceptance/test_docs.py"},
}
"""The tests that run the programs and commands of a page, by section, or "" for the whole page."""
LISTED = {"docs/operations.md", "docs/qdo.md"}
"""Pages with lists of commands that no test runs. ``tests/docs/test_links.py`` checks that the commands and options
exist."""
TITLE = re.compile(r'title="([^"]+)"')
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One fenced block of a page: language, text, first line of the text, section, mark, and title."""

    language: str
    text: str
    line: int
    section: str = ""
    mark: str = ""
    title: str = ""

    def save(self, directory: Path) -> None:
        (directory / self.title).write_text(self.text)


def blocks(page: str, *, below: str = "") -> list[Block]:
    """Returns the fenced blocks of a page, or only of its section ``below``. A block's default language is ``text``."""
    text = (ROOT / page).read_text()
    fenced = []
    for match in FENCE.finditer(text):
        language, _, rest = match[2].partition(" ")
        title = "".join(TITLE.findall(rest))
        mark = TITLE.sub("", rest).strip()
        section = re.findall(r"^## (.+)$", text[: match.start()], re.MULTILINE)[-1:]
        line = text[: match.start()].count("\n") + 2
        fenced.append(Block(language or "text", textwrap.dedent(match[3]), line, "".join(section), mark, title))
    return [block for block in fenced if below in {"", block.section}]


def runnable_blocks(page: str, *, below: str = "", languages: Container[str] = PROGRAMS) -> list[Block]:
    """Returns the programs, commands and files without a mark, of a page or of one of its sections."""
    unmarked = (block for block in blocks(page, below=below) if not block.mark)
    return [block for block in unmarked if block.title or block.language in languages]


def examples(thing: object) -> list[Block]:
    """Returns the examples in the docstring of a class or function: the indented texts after ``::``."""
    matches = re.finditer(r"^::\n\n((?:    .*\n|\n)+)", (inspect.getdoc(thing) or "") + "\n", re.MULTILINE)
    return [Block("python", textwrap.dedent(match[1]), 1) for match in matches]


class Reader:
    """A reader who types what a page says, next to a running service.

    Args:
        served: The service.
        directory: The working directory.
        names: Predefined names of the programs.
        variables: Environment variables besides the profile and the data directory.
    """

    def __init__(
        self, served: Served, directory: Path, names: Mapping[str, object] | None = None, /, **variables: str
    ) -> None:
        self._directory = directory
        self._names = dict(names or {})
        self._environment = environment(
            PATH=f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            QUEUEY_PROFILE=str(served.profile_path),
            QUEUEY_DATA=str(served.data),
            **variables,
        )

    def run(self, page: str, block: Block) -> str:
        """Runs a block, or writes its file. Returns the output of a command, which must succeed, else an empty text.

        Python programs run in this process, and share their names with later ones.
        """
        if block.title:
            block.save(self._directory)
            return ""
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), self._names)
            return ""
        ended = run_to_end(["/bin/sh", "-eu", "-c", block.text], cwd=self._directory, env=self._environment)
        assert ended.returncode == 0, f"{page}:{block.line}\n{block.text}\n{ended.stdout}{ended.stderr}"
        return ended.stdout
