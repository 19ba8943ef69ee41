"""Writes the sync client from the async one: ``python deploy/unasync.py``.

``queuey/client/_async`` is the source, ``queuey/client/_sync`` the result. With ``--check`` nothing is written, and the
exit code is 1 if the result is not that of the source.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "queuey" / "client" / "_async"
RESULT = ROOT / "queuey" / "client" / "_sync"
COMMAND = "python deploy/unasync.py"

TEXTS = {
    f"The client for async code, and the source of the one for threads: run ``{COMMAND}`` after a change.": (
        f"The client for threads, which ``{COMMAND}`` writes from the one for async code."
    ),
    "for async code, in one event loop. Close it, or use it as an async context manager.": (
        "safe to use from several threads. Close it, or use it as a context manager."
    ),
    "A client of the service safe": "A client of the service, safe",
    "For async code, in one event loop.": "Safe to use from several threads.",
    "For async code, on asyncio.": "Safe to use from several threads.",
    "a function, also an async one, that": "a function that",
    "An async httpx2 transport": "An httpx2 transport",
    "A function, or a coroutine function, that handles a job.": "A function that handles a job.",
    'Closes the connections and the file of receipts. Jobs that loops still hold are released first."""': (
        "Closes the connections and the file of receipts. Claims that are held expire.\n\n"
        "        Waits up to 5 s if claims were released during a renewal, to release them once more.\n"
        '        """'
    ),
}
"""Sentences that differ."""

NAMES = {
    r"\b_async\b": "_sync",
    r"\bhttpcore2\.AnyIOBackend\b": "httpcore2.SyncBackend",
    r"\bhandle_async_request\b": "handle_request",
    r"\baiter_stream\b": "iter_stream",
    r"\bAsyncGenerator\[(.+), None\]": r"Generator[\1, None, None]",
    r"\bAwaitable\[None\]": "None",
    r"\bAwaitable, ": "",
    r"\bAsync(?=[A-Z])": "",
    r"\b(check_messages|ask|open)_async\b": r"\1",
    r"\bmake_async_handler\b": "make_sync_handler",
    r"\basynccontextmanager\b": "contextmanager",
    r"\baclosing\b": "closing",
    r"\baclose\b": "close",
    r"\baiter\b": "iter",
    r"\b__a(enter|exit)__\b": r"__\1__",
    r"\basync (def|for|with)\b": r"\1",
    r"\bawait ": "",
    r"  # noqa: ASYNC\d+ - .*": "",
    r", ASYNC\d+": "",
}
"""Patterns in code and examples, in this order, and their replacements."""

ASYNC_ONLY = re.compile(r"^ +# async only.*?^ +# both again\n\n", re.DOTALL | re.MULTILINE)
MAIN = re.compile(
    r"^(?P<indent> *)(?P<prompt>>>> )?async def main\(\):\n"
    r"(?P<body>(?:(?P=indent)(?:\.\.\. |    ).*\n| *\n)+)(?P=indent)(?:>>> )?asyncio\.run\(main\(\)\)\n",
    re.MULTILINE,
)


def make_sync_text(source: str) -> str:
    text = ASYNC_ONLY.sub("", source)
    text = MAIN.sub(unwrap_main, text)
    text = re.sub(r"^ *(>>> )?import asyncio\n\n?", "", text, flags=re.MULTILINE)
    for async_sentence, sync_sentence in TEXTS.items():
        text = text.replace(async_sentence, sync_sentence)
    for pattern, name in NAMES.items():
        text = re.sub(pattern, name, text)
    return text


def unwrap_main(match: re.Match[str]) -> str:
    """Returns the statements of an example's ``main``, without its indentation and with its prompts."""
    indent, prompt = match["indent"], match["prompt"]
    if not prompt:
        return re.sub(rf"^{indent}    ", indent, match["body"], flags=re.MULTILINE).rstrip() + "\n"
    body = re.sub(rf"^{indent}\.\.\.     (?=\S)", f"{indent}>>> ", match["body"], flags=re.MULTILINE)
    return re.sub(rf"^{indent}\.\.\.     ", f"{indent}... ", body, flags=re.MULTILINE)


def make_results() -> dict[Path, str]:
    config = ["--config", str(ROOT / "pyproject.toml"), "--config", 'lint.isort.known-first-party=["queuey"]']
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for source in SOURCE.glob("*.py"):
            note = f"# Do not edit: {COMMAND} writes this file from queuey/client/_async/{source.name}.\n"
            (directory / source.name).write_text(note + make_sync_text(source.read_text()))
        for options in (["check", "--fix-only", "--select", "F401,I001"], ["format"]):
            command = [sys.executable, "-m", "ruff", *options, "--quiet", "--no-cache", *config, name]
            subprocess.run(command, check=True, cwd=ROOT)
        return {RESULT / path.name: path.read_text() for path in directory.glob("*.py")}


def main() -> None:
    """Writes changed modules and removes obsolete ones. With ``--check``, only fails if there is such a module."""
    written = make_results()
    stale = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in RESULT.glob("*.py") if path not in written]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(sorted(str(path.relative_to(ROOT)) for path in stale))
            sys.exit(f"{names}: not what is generated from queuey/client/_async. Regenerate: {COMMAND}")
        return
    RESULT.mkdir(exist_ok=True)
    for path in stale:
        if path in written:
            path.write_text(written[path])
        else:
            path.unlink()


if __name__ == "__main__":
    main()
