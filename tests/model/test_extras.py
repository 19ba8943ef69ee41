"""Messages that tell users what to install."""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import queuey
from queuey.model.extras import DISTRIBUTION, MODULES, install_command
from tests.servers.processes import run_to_end, run_well

PIP = [sys.executable, "-m", "pip", "install"]


def set_requirements(monkeypatch: pytest.MonkeyPatch, lines: Sequence[str] | None) -> None:
    """Sets the packages that the distribution requires; None: it is not installed."""
    monkeypatch.setattr(importlib.metadata, "requires", {DISTRIBUTION: lines}.__getitem__)


def test_packages_of_one_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names the packages of the extra and of those that it includes, with their versions, and no others."""
    set_requirements(
        monkeypatch,
        [
            *("anyio<5,>=4.12", "uvloop<0.24,>=0.22; sys_platform != 'win32'"),
            *("rich<16,>=15; extra == 'cli'", "kazoo<2.12,>=2.11; extra == 'zookeeper'"),
            *('queuey-store[cli]; extra == "worker"', "prometheus-client<0.27; extra == 'worker'"),
            *(
                'uvloop<0.24; (sys_platform != "win32") and extra == "server"',
                "queuey-store[worker,zookeeper]; extra == 'server'",
            ),
        ],
    )
    assert shlex.split(install_command("zookeeper")) == [*PIP, "kazoo<2.12,>=2.11"]
    assert shlex.split(install_command("worker")) == [*PIP, "rich<16,>=15", "prometheus-client<0.27"]
    expected = ["uvloop<0.24", "rich<16,>=15", "prometheus-client<0.27", "kazoo<2.12,>=2.11"]
    assert install_command("server") == shlex.join([*PIP, *expected])


@pytest.mark.parametrize("lines", [None, [], ["anyio<5,>=4.12"]])
def test_an_older_installation(lines: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the installed version does not know the extra, the command names the running checkout."""
    set_requirements(monkeypatch, lines)
    checkout = Path(queuey.__file__).parents[1]
    assert shlex.split(install_command("spark")) == [*PIP, f"{checkout}[spark]"]


def test_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that was not installed is named itself."""

    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    checkout = Path(queuey.__file__).parents[1]
    assert shlex.split(install_command("spark")) == [*PIP, f"{checkout}[spark]"]


USERS = """
from queuey.access.credentials.users import make_readers
from queuey.settings import UserIssuer
make_readers({"shop": (UserIssuer(issuer="https://a.example", audience="a", keys="keys.json", scheme=%r),)})
"""
USES = {
    "cli": "from queuey.__main__ import main; main()",
    "worker": "from qdo.__main__ import main; main()",
    "server": "import queuey.embedded",
    "cassandra": "from queuey import app, settings; import queuey.app.opening; app.opening.open_store("
    "settings.Settings(store='cassandra://h/k'))",
    "zookeeper": "import qdo; qdo.open_coordinator('zookeeper://h', 'g')",
    "spark": "from queuey.spark.session import session; session()",
    "users": USERS % "Bearer",
    "browserid": USERS % "BrowserID",
    "sqs": "from queuey.facades.protocols import load_facade_class; load_facade_class('sqs')",
    "traces": "from queuey.client import enable_tracing; enable_tracing()",
}
"""A program that uses an extra."""
CORE = {"anyio", "h11", "httpcore2", "idna", "msgspec", "platformdirs", "truststore", "typing_extensions"}
"""The modules that an installation without an extra brings."""


def test_every_extra_has_a_use() -> None:
    """Each extra with modules has a program here."""
    assert USES.keys() == MODULES.keys()


@pytest.mark.needs_programs
@pytest.mark.parametrize("extra", sorted(MODULES))
def test_a_missing_extra_names_itself(extra: str) -> None:
    """Without the modules of an extra, what needs it says in its last line how to install it."""
    block = f"import sys; sys.modules.update(dict.fromkeys({MODULES[extra]}))\n"
    ended = run_to_end([sys.executable, "-c", block + USES[extra]])
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith(
        f" needs {', '.join(MODULES[extra])}. Install it: {install_command(extra)}"
    )


@pytest.mark.needs_programs
@pytest.mark.parametrize(
    ("program", "modules"),
    [
        ("import queuey.client", {"msgspec", "typing_extensions"}),
        ("from queuey.client import Client; Client('http://h', key='k').close()", CORE - {"idna"}),
        (
            "import qdo; [getattr(qdo, name) for name in qdo.__all__]; import qdo.tasks, qdo.worker.worker",
            {"msgspec", "typing_extensions"},
        ),
    ],
)
def test_the_core_imports_nothing_else(program: str, modules: set[str]) -> None:
    """Clients, tasks and workers import these modules of others, and run where no extra is installed."""
    extras = {name for names in MODULES.values() for name in names} | {"apsw", "h2", "uvloop"}
    lines = [
        "import sys; before = set(sys.modules)",
        f"sys.modules.update(dict.fromkeys({extras}))",
        program,
        "names = {name.partition('.')[0] for name, module in sys.modules.items() if name not in before and module}",
        "print(*sorted(names - sys.stdlib_module_names - {'queuey', 'qdo'}))",
    ]
    assert set(run_well([sys.executable, "-c", "\n".join(lines)]).split()) == modules
