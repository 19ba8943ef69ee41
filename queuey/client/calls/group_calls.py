"""Calls of consumer groups whose partitions the service divides among members."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from queuey.api.groups import GroupInfo, GroupNames, Heartbeat, HeartbeatAnswer, Joined, NewMember
from queuey.client.calls.call import JSON, Call, encode, ignore_answer, make_parser, number_text, queue_segment
from queuey.client.calls.progress_calls import group_segment, member_id


def join(group: str, new_member: NewMember) -> Call[Joined]:
    """Joins a group. If the answer is lost, the member owns no partitions and is removed after its session."""
    for name in new_member.queues:
        queue_segment(name)
    path = f"{_group_path(group)}/members"
    return Call(
        "POST",
        path,
        make_parser(Joined),
        headers=JSON,
        content=encode(msgspec.to_builtins(new_member)),
        repeatable=True,
    )


def heartbeat(group: str, member: str, beat: Heartbeat) -> Call[HeartbeatAnswer]:
    number_text("wait", beat.wait)
    path = _member_path(group, member)
    content = encode(msgspec.to_builtins(beat, str_keys=True))
    return Call(
        "POST", path, make_parser(HeartbeatAnswer), headers=JSON, content=content, repeatable=True, wait=beat.wait
    )


def leave(group: str, member: str, *, returns: bool) -> Call[None]:
    params = (("return", "1"),) if returns else ()
    return Call("DELETE", _member_path(group, member), ignore_answer, params=params, repeatable=True)


def remove_member(group: str, number: int) -> Call[None]:
    return Call("DELETE", f"{_group_path(group)}/members/{number_text('number', number)}", ignore_answer)


def show(group: str, start: str, *, lag: bool) -> Call[GroupInfo]:
    params = [("start", start)] if start else []
    params += [("lag", "1")] if lag else []
    return Call("GET", _group_path(group), make_parser(GroupInfo), params=tuple(params), repeatable=True)


def names(start: str) -> Call[GroupNames]:
    params = (("start", start),) if start else ()
    return Call("GET", "_groups", make_parser(GroupNames), params=params, repeatable=True)


def forget(group: str, *, force: bool) -> Call[None]:
    return Call("DELETE", _group_path(group), ignore_answer, params=(("force", "1"),) if force else ())


def _group_path(group: str) -> str:
    return f"_groups/{group_segment(group)}"


def _member_path(group: str, member: str) -> str:
    return f"{_group_path(group)}/members/{quote(member_id(member), safe='')}"
