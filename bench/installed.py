"""Measures what installing the wheel brings: distributions, size, and the time to import the client.

``python -m bench.installed dist/queuey_store-*.whl`` prints a table. It installs into new environments, so it needs an
index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROLES = ("", "cli", "worker", "server", "all")
TOOLS = {"pip", "setuptools"}
"""Packages of a new environment."""
CLIENT = "import time; began = time.process_time(); import queuey.client; print(time.process_time() - began)"
IMPORTS = 15


def measure(wheel: Path, extra: str, home: Path) -> tuple[int, float, float]:
    """Returns the number of other distributions, the size in MB without bytecode, and the CPU seconds of an import."""
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    target = f"{wheel.resolve()}[{extra}]" if extra else str(wheel.resolve())
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", "constraints.txt", target], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    names = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")} - TOOLS - {"queuey_store"}
    files = [path for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    size = sum(path.stat().st_size for path in files if path.relative_to(packages).parts[0] not in TOOLS)
    ran = (subprocess.run([python, "-c", CLIENT], check=True, capture_output=True) for _ in range(IMPORTS))
    return len(names), size / 1e6, min(float(ended.stdout) for ended in ran)


def main(wheel: Path) -> None:
    for extra in ROLES:
        with tempfile.TemporaryDirectory() as home:
            count, size, seconds = measure(wheel, extra, Path(home))
        print(f"| {extra or 'none'} | {count} | {size:.0f} MB | {seconds:.3f} s |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
