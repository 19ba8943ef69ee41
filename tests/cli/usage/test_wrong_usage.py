"""Invalid command lines: exit code 2, an error that names the option and the value, and no request."""

from __future__ import annotations

import shlex

import pytest

from queuey.client import Client
from tests.commands import Run
from tests.servers.served import Served

WRONG = """
queue create x --partitions 201 | '--partitions': Input should be less than or equal to 200; '201' is given
queue create x --ttl 1y | '--ttl': '1y' is not a length of time
queue create x --ttl 1.5 | '--ttl': '1.5' is not a whole number of seconds
queue create x --kind fifo | 'fifo' is not one of 'plain', 'dedup'
queue update QUEUE | --reset
queue update QUEUE --reset partitions | partitions
queue update QUEUE --ttl 1h --reset ttl | ttl
queue delete QUEUE | --yes
queue purge QUEUE | --yes
offsets set QUEUE g 1 | '1'
offsets set QUEUE g =x | '=x'
app create 'a b' --data DATA | 'a b'
app create a/b --data DATA | 'a/b'
app key-add queuey --allow write --data DATA | write
app key-add queuey --queues a/b --data DATA | a/b
app key-add queuey --queues a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u --data DATA | 20
app rotate x --grace 1y | '--grace': '1y' is not a length of time
serve --facade nats | '--facade': 'nats' is not one of
jobs QUEUE list | 'act': 'list' is not one of 'cancel', 'retry'
settings --max-body none | max_body
read x --limit 0 | greater than or equal to 1; '0' is given
read QUEUE --sinc x | --since
read QUEUE --since yesterday | 'yesterday'
read QUEUE --partitions 0 | a number from 1
read QUEUE --partitions '' | a number from 1
read QUEUE --partitions -1 | a number from 1
read QUEUE --key k --token-file t | key and token_file are both given
tail QUEUE --last 1 --limit 1 --partitions 0 | a number from 1
claim QUEUE --partitions 0 | a number from 1
get QUEUE | give either ids or --name
get QUEUE 0123456789ab11e88000000000000001 --name n | give either ids or --name
delete QUEUE | give either ids or --name
delete QUEUE 0123456789ab11e88000000000000001 --name n | give either ids or --name
explain QUEUE x | 'x'
explain QUEUE x:00000000000000000000000000000000 | 'x'
send QUEUE a --from - | --from
send QUEUE --from - --raw --key-field n | --raw
send QUEUE --from - --queue-field n | --queue-field
send QUEUE --from - --key-field n --message-key k | --message-key
send QUEUE --from - --name n | --name
send QUEUE a b --name n | --name
send QUEUE a --replace | --replace
send QUEUE a --header novalue | novalue
send QUEUE a --ttl 500ms | '--ttl': '500ms' is not between 1 s and 388 d
send QUEUE x --at 2020-02-30T09:00 | is not a time
send QUEUE x --at 2020-02-02T09:00 | Give a later time
send QUEUE x --at +389d | the longest delay is 388 days
send QUEUE x --at +1h --delay 1h | exclude each other
send QUEUE x --at +1h --name n | a named message has no partition, key or delay
schedule put s --queue QUEUE --body x --json-body 1 --every 60 | --json-body
schedule put s --queue QUEUE --json-body { --every 60 | JSON
schedule put s --queue QUEUE --message-key k --every 60 | body
schedule put s --queue QUEUE --body x --header a --every 60 | 'a'
"""
"""A command line, and a part of its error."""


@pytest.mark.parametrize(("line", "said"), [case.split(" | ") for case in WRONG.strip().splitlines()])
def test_wrong_usage(run: Run, served: Served, client: Client, queue: str, line: str, said: str) -> None:
    """The exit code is 2, the error names what is wrong, nothing is printed and nothing is stored."""
    places = {"QUEUE": queue, "DATA": str(served.data)}
    ended = run(*(places.get(word, word) for word in shlex.split(line)), stdin=b"1\n")
    assert (ended.code, ended.out) == (2, b"")
    assert said in " ".join(ended.err.replace("│", " ").split())
    assert client.job_queue(queue).backlog().waiting == client.job_queue(queue).backlog().delayed == 0


@pytest.mark.parametrize("command", ["send", "ack", "release"])
def test_nothing_to_do(run: Run, queue: str, command: str) -> None:
    """Empty input is wrong usage, not an empty message or no receipt."""
    assert run(command, queue).code == 2
