"""The table of kinds and acts in docs/claims-kinds.md: each cell is what happens in both stores."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from queuey.app.application import make_app
from queuey.client import Client
from queuey.client.errors import InvalidRequest
from queuey.model.kinds import TRAITS
from queuey.storage import Store
from tests.backends import PROMPT
from tests.contract.samples import make_queue
from tests.in_process import InProcess
from tests.tenants import KEY, make_tenants

ROOT = Path(__file__).parents[3]
HOMES = (ROOT / "queuey" / "model" / "kinds.py", ROOT / "queuey" / "claims" / "rules" / "kinds")
WORDS = {"plain", "dedup", "ordered"}
LIMITS = {"max_claimed", "max_claimed_per_key", "keeps_keys"}
OPTIONS = {name: {"kind": name} for name in TRAITS} | {"limited": {"max_claimed_per_key": 3}}
POSTS: dict[str, Any] = {"post": {}, "post with key": {"key": "k"}, "post to partition": {"partition": 1}}
ACTS = {
    **{act: act for act in POSTS},
    "put": "`PUT` by id",
    "name": "post with a name",
    "move": "move from or to",
    "write from Spark": "write from Spark",
    "add partitions": "add partitions",
    "deliver early": "retry a delayed job at once",
}
"""Act -> head of its column."""


def make_table() -> list[str]:
    """Returns the lines of the page's table."""
    names = list(TRAITS)
    rows = [["", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    rows += [[head, *("no" if act in TRAITS[name].refuses else "yes" for name in names)] for act, head in ACTS.items()]
    return [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]


def test_the_page_has_the_table() -> None:
    """The page shows what each kind allows, and every act that some kind refuses has a row."""
    assert {act for traits in TRAITS.values() for act in traits.refuses} == ACTS.keys()
    table = "\n".join(make_table())
    assert table in (ROOT / "docs" / "claims-kinds.md").read_text("utf-8"), f"Put this table into the page:\n{table}"


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize("act", [act for act in ACTS if act != "write from Spark"])
@pytest.mark.parametrize("name", TRAITS)
def test_each_kind_refuses_what_the_table_says(store: Store, name: str, act: str) -> None:
    """A client gets the text of the table for a refused act; any other is carried out."""
    make_tenants(store)
    queue, other = (
        make_queue(store, application="queuey", consistency=PROMPT, partitions=2, **options)
        for options in (OPTIONS[name], {})
    )
    text = queue.traits.refusal(act, queue)
    refused = nullcontext() if text is None else pytest.raises(InvalidRequest)
    client = Client("http://127.0.0.1:5000/v1/queuey/", key=KEY, transport=InProcess(make_app(store)))
    with client:
        delayed = client.send(queue.name, "a", delay=60, key="k" if queue.traits.stores_keys else None)
        with refused as caught:
            match act:
                case "put":
                    client.put(queue.name, delayed, "b")
                case "name":
                    client.named(queue.name).create("n", "b")
                case "deliver early":
                    client.job_queue(queue.name).retry(delayed)
                case "add partitions":
                    client.update_queue(queue.name, partitions=3)
                case "move":
                    for way in ((queue, other), (other, queue)):
                        client.move(way[0].name, way[1].name)
                case _:
                    client.send(queue.name, "b", **POSTS[act])
    assert text is None or (caught is not None and text in caught.value.fields.values())


def find_askers(tree: ast.AST) -> set[int]:
    """Returns the lines that compare with a kind's name, or have a condition on limits of claims."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            values = [value.value for value in (node.left, *node.comparators) if isinstance(value, ast.Constant)]
            lines |= {node.lineno for value in values if value in WORDS}
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            lines |= {
                node.lineno for part in ast.walk(node.test) if isinstance(part, ast.Attribute) and part.attr in LIMITS
            }
    return lines


def test_others_ask_for_traits_not_for_kinds() -> None:
    """Outside of their two homes, at most 4 places in 3 files compare kinds or limits."""
    files = [path for top in ("queuey", "qdo") for path in (ROOT / top).rglob("*.py")]
    others = [path for path in files if not any(path == home or home in path.parents for home in HOMES)]
    found = {path.name: lines for path in others if (lines := find_askers(ast.parse(path.read_text("utf-8"))))}
    assert (len(found), sum(map(len, found.values()))) <= (3, 4), found
