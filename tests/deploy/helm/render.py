"""Renders the chart with Helm's own library, in a process of its own: it is a Go program with threads and signals.

The library comes from the jar of helm-java. Standard input is a JSON object of values by name. Standard output is a
JSON array: the linter's messages, then for each case Helm's manifests, and its reason if it refuses the values.
"""

from __future__ import annotations

import ctypes
import json
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from deploy.local import jars
from deploy.local.errors import CannotFetch
from tests.servers.processes import run_well

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "queuey"
RELEASE, NAMESPACE = "queuey", "messages"
MIN_KUBERNETES = "1.29"
"""The oldest Kubernetes that the chart supports."""
HELM_JAVA = "0.0.21"
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
RENDER_TIMEOUT = 300
"""Timeout of the whole rendering on a busy machine, in seconds."""
HOOK, NO_HOOK = "helm.sh/hook", "helm.sh.hook/hook"
"""The library leaves hooks out of its output, so they are renamed while it renders."""

Manifest = dict[str, Any]


class Rendered(NamedTuple):
    """Result of rendering values.

    Attributes:
        refusal: Reason why Helm refuses them; empty if it renders them.
        manifests: The objects, hooks included.
    """

    refusal: str
    manifests: list[Manifest]

    def all(self, kind: str) -> list[Manifest]:
        return [one for one in self.manifests if one["kind"] == kind]

    def one(self, kind: str) -> Manifest:
        (manifest,) = self.all(kind)
        return manifest


class Chart(NamedTuple):
    """Helm's results for the chart: of the linter, and for each case's values."""

    linted: str
    rendered: dict[str, Rendered]


def render(cases: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Returns Helm's results; skips the test where its library is unavailable."""
    command = [sys.executable, "-m", "tests.deploy.helm.render", str(_library())]
    linted, *results = json.loads(run_well(command, RENDER_TIMEOUT, cwd=ROOT, input=json.dumps(cases)))
    texts = zip(cases, results, strict=True)
    return Chart(
        linted,
        {
            name: Rendered(refusal, [one for one in yaml.safe_load_all(text) if one is not None])
            for name, (text, refusal) in texts
        },
    )


def _library() -> Path:
    """Returns the jar with Helm's library for this machine. Skips the test if it cannot be fetched."""
    machine = MACHINES.get(platform.machine().lower(), platform.machine())
    name = f"{platform.system().lower()}-{machine}"
    bundle = jars.Bundle(f"helm-{name}-{HELM_JAVA}", (f"com.marcnuri.helm-java:{name}:{HELM_JAVA}",), alone=True)
    try:
        (jar,) = jars.fetch_jars(bundle).glob("*.jar")
    except CannotFetch as error:
        pytest.skip(f"needs Helm's library: {error}")
    return jar


class _Result(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_char_p) for name in ("out", "err", "stdout", "stderr"))


class _TemplateOptions(ctypes.Structure):
    """The struct in the header of the jar."""

    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("name", "version", "chart", "namespace", "kube_version")),
        *((name, ctypes.c_int) for name in ("dependency_update", "skip_crds")),
        *((name, ctypes.c_char_p) for name in ("values", "set_files", "values_files")),
        *((name, ctypes.c_char_p) for name in ("cert_file", "key_file", "ca_file")),
        *((name, ctypes.c_int) for name in ("insecure_skip_tls_verify", "plain_http")),
        ("keyring", ctypes.c_char_p),
        ("debug", ctypes.c_int),
        ("repository_config", ctypes.c_char_p),
    )


class _LintOptions(ctypes.Structure):
    _fields_ = (("path", ctypes.c_char_p), ("strict", ctypes.c_int), ("quiet", ctypes.c_int))


def _load(jar: Path, directory: Path) -> ctypes.CDLL:
    with zipfile.ZipFile(jar) as packed:
        (name,) = [name for name in packed.namelist() if Path(name).suffix in {".so", ".dylib"}]
        library = ctypes.CDLL(packed.extract(name, directory))
    library.Template.restype = library.Lint.restype = _Result
    return library


def _said(result: _Result) -> tuple[str, str]:
    return (result.out or b"").decode(), (result.err or b"").decode()


def main() -> None:
    """Lints the chart, renders each case of the JSON on stdin, and prints what Helm said as a JSON list."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        library = _load(Path(sys.argv[1]), directory)
        quiet = _LintOptions(str(CHART).encode(), strict=1, quiet=1)
        results: list[Any] = ["".join(_said(library.Lint(ctypes.byref(quiet))))]
        chart, values = directory / CHART.name, directory / "values.json"
        shutil.copytree(CHART, chart)
        for path in (chart / "templates").iterdir():
            path.write_text(path.read_text().replace(HOOK, NO_HOOK))
        where = {"name": RELEASE, "chart": str(chart), "namespace": NAMESPACE, "values_files": str(values)}
        where["kube_version"] = f"v{MIN_KUBERNETES}.0"
        options = _TemplateOptions(**{name: text.encode() for name, text in where.items()})
        for case in json.load(sys.stdin).values():
            values.write_text(json.dumps(case))
            text, refusal = _said(library.Template(ctypes.byref(options)))
            results.append((text.replace(NO_HOOK, HOOK), refusal))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
