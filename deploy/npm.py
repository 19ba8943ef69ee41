"""Packs the JavaScript client as an npm package, the same bytes each time: ``python deploy/npm.py DIRECTORY``."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import tarfile
from pathlib import Path

from queuey import __version__

ROOT = Path(__file__).parents[1]
NAME = "queuey-client"
FILES = ("queuey.js", "queuey.d.ts")
README = """# queuey-client

A client of Queuey for browsers and Node 18 or later: one ES module with types, without dependencies.

```js
import { Queuey } from "queuey-client";

const queuey = new Queuey("https://queuey.example.com", "shop", { token: () => fetchToken() });
for await (const message of queuey.stream("inbox")) show(message.body);
```
"""


def make_version() -> str:
    match = re.fullmatch(r"(\d+(?:\.\d+)*)(.*)", __version__)
    assert match is not None  # noqa: S101 - it is there
    numbers, rest = match.groups()
    parts = [*numbers.split("."), "0", "0"][:3]
    return ".".join(parts) + (f"-{rest.strip('.')}" if rest else "")


def pack(directory: Path) -> Path:
    about = {
        "name": NAME,
        "version": make_version(),
        "description": "A client of Queuey for browsers and Node",
        "type": "module",
        "main": "./queuey.js",
        "types": "./queuey.d.ts",
        "exports": {".": {"types": "./queuey.d.ts", "default": "./queuey.js"}},
        "engines": {"node": ">=18"},
        "license": "Apache-2.0",
        "sideEffects": False,
    }
    source = ROOT / "queuey" / "javascript"
    content = {
        "package.json": (json.dumps(about, indent=2) + "\n").encode(),
        "README.md": README.encode(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        **{name: (source / name).read_bytes() for name in FILES},
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in content.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{NAME}-{make_version()}.tgz"
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return path


if __name__ == "__main__":
    print(pack(Path(sys.argv[1])))
