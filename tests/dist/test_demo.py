"""``queuey demo`` from the wheel."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.acceptance.test_demo import check_parts_reported
from tests.dist.building import Built, requirements
from tests.servers.processes import run_to_end
from tests.servers.served import environment


def find_requirements(extra: str) -> set[str]:
    """Returns all that an extra requires directly or indirectly, without extras of those."""
    names, new = set(), [line.name for line in requirements(extra)]
    while new:
        names.add(package := new.pop())
        lines = map(Requirement, distribution(package).requires or [])
        required = [line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
        new += [other for other in required if other not in names]
    return names


def test_the_demo_of_an_installed_wheel(built: Built, tmp_path: Path) -> None:
    """In an environment with the wheel and its extra `server`, without Spark, the demo shows all and leaves nothing."""
    home, place = tmp_path / "environment", tmp_path / "place"
    place.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/*/site-packages")
    for name in find_requirements("server"):
        for file in distribution(name).files or []:
            top = packages / file.parts[0]
            if file.parts[0] not in {"..", "__pycache__"} and not top.exists():
                top.symlink_to(Path(str(distribution(name).locate_file(file.parts[0]))))
    python = str(home / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, str(built.wheel)], check=True)
    variables = environment(TMPDIR=str(place), PYTHONPATH="")
    ended = run_to_end([home / "bin" / "queuey", "demo"], 170, cwd=place, env=variables)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    check_parts_reported(ended.stdout)
    assert "PySpark is not installed" in ended.stdout
    assert not list(place.iterdir())
