"""Tests of what may reach a terminal, and how commands end."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextvars import copy_context

import msgspec
import pytest

from queuey.model import texts
from queuey.terminal import output
from queuey.terminal.signals import handle_signals

EVERYTHING = "".join(map(chr, range(sys.maxunicode + 1)))
TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class Tty(io.TextIOWrapper):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def unsafe_characters(text: str, *kept: str) -> set[str]:
    bad = {"Cc", "Cs", "Zl", "Zp"}
    marks = "\u061c\u200e\u200f"
    found = {c for c in text if unicodedata.category(c) in bad or unicodedata.bidirectional(c) in TURNING or c in marks}
    return found - {*kept}


def test_no_character_steers_a_terminal() -> None:
    """No control or reordering character is left; ordinary text is unchanged."""
    assert unsafe_characters(texts.printable(EVERYTHING)) == set()
    fine = "Grüße, 日本語 עברית عربى नमस्ते \u200d👩\u200d👧"
    assert texts.printable(fine) == fine
    assert texts.printable("a\u202eb\x9b\n") == r"a\u202eb\x9b\n"


def test_results_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON on a terminal is still the same JSON, and bodies keep their lines, without control characters."""
    text = EVERYTHING.encode("utf-8", "replace").decode()
    for data, as_json in ((json.dumps(text, ensure_ascii=False), True), (text, False)):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", Tty(out, "utf-8"))
        output.write(data.encode(), json=as_json)
        written = out.getvalue().decode()
        assert unsafe_characters(written, "\t", "\n") == set()
        if as_json:
            assert json.loads(written) == text
        else:
            assert written.count("\n") == text.count("\n")


class Thing(msgspec.Struct):
    """A struct to show."""

    name: str
    count: int = 0


def capture_output(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, as_json: bool) -> tuple[str, str]:
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", write_through=True))
    context = copy_context()
    context.run(output.choose_json, as_json)
    context.run(act)
    return out.getvalue().decode(), err.getvalue().decode()


def test_a_result_is_shown_for_people_or_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json a result is one document, and its text is not even made; otherwise the text goes to both outputs."""
    made = []

    def text() -> Iterator[output.Block]:
        made.append(1)
        yield "It is there."
        yield output.ToStderr("Look twice.")
        yield output.fields(Thing("a", 3))
        yield output.table(Thing, {2: Thing("b"), 1: Thing("c")}, "name", key="number")

    def act() -> None:
        output.show(Thing("a", 3), text())

    assert capture_output(monkeypatch, act, as_json=True) == ('{"name":"a","count":3}\n', "")
    assert made == []
    lines = "It is there.\nname   a\ncount  3\nnumber  name\n     1  c\n     2  b\n"
    assert capture_output(monkeypatch, act, as_json=False) == (lines, "Look twice.\n")


class Oops(Exception):
    """An error with a complete message."""


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (SystemExit(3), 3, ""),
        (KeyboardInterrupt(), 130, ""),
        (Oops("the \u202equeue"), 1, "prog: the \\u202equeue\n"),
        (Oops("usage"), 2, "prog: usage\n"),
        (output.Failed("no such file", 4), 4, "prog: no such file\n"),
        (OSError(errno.EACCES, "Permission denied", "/x"), 1, "prog: Permission denied: /x\n"),
    ],
    ids=["exit", "Ctrl-C", "known", "usage", "failed", "system"],
)
def test_how_a_command_ends(
    raised: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Common errors end with an exit code and a line at most."""

    def command() -> None:
        raise raised

    with pytest.raises(SystemExit) as ended:
        output.run("prog", command, (Oops,), lambda error: str(error) == "usage")
    assert ended.value.code == code
    assert capsys.readouterr().err == said


def test_a_signal_is_heard_in_a_system_call() -> None:
    """A signal that another thread receives is handled even while the main thread is in a system call."""
    heard, (read, write) = [], os.pipe()

    def stop(number: int, _frame: object) -> None:
        heard.append(number)
        raise SystemExit(number)

    def signalled() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        ended.wait(60)  # this thread gets the signal
        os.write(write, b"late")

    ended, before = threading.Event(), signal.getsignal(signal.SIGURG)
    thread = threading.Timer(0.1, signalled)
    with handle_signals(stop, (signal.SIGUSR1,)):
        thread.start()
        with pytest.raises(SystemExit):
            os.read(read, 10)
    ended.set()
    thread.join(60)
    assert (heard, os.read(read, 10)) == ([signal.SIGUSR1], b"late")
    assert signal.getsignal(signal.SIGURG) is before
    os.close(read)
    os.close(write)
