"""Users with tokens: who is let in, what they may do, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from queuey.access.authorization import Authorization
from queuey.access.credentials.bearer import Bearer
from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.model.messages import QueueSpec
from queuey.model.rights import VERBS, Action, parse_principals, parse_scope
from queuey.model.user_queues import queue_name, user_name
from queuey.settings import UserIssuer
from queuey.settings.users import RoleVerb
from queuey.storage import Store, bridge
from tests.access.users.issuer import AUDIENCE, Issuer, KeyServer, known_key, patient_readers, serving
from tests.access.users.token_attacks import ATTACKS
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller
from tests.web.gateway_calls import blank_request

PATTERN = "inbox-{user}"
ID = "0123456789ab11e88000000000000001"


@pytest.fixture
def issuer() -> Issuer:
    """The issuer that the application trusts."""
    return Issuer()


@pytest.fixture
def keys(issuer: Issuer) -> Iterator[KeyServer]:
    with serving(issuer.make_key_set()) as server:
        yield server


@pytest.fixture
def trusted(issuer: Issuer, keys: KeyServer) -> UserIssuer:
    return UserIssuer(
        issuer=issuer.name,
        audience=AUDIENCE,
        keys=keys.url,
        queues={PATTERN: ("read", "delete"), "out-{user}": ("send",)},
    )


@pytest.fixture
def users(trusted: UserIssuer) -> dict[str, tuple[UserIssuer, ...]]:
    return {"queuey": (trusted,)}


@pytest.fixture
def app(store: Store, users: dict[str, tuple[UserIssuer, ...]]) -> App:
    """The application, with two tenants that have a key each, one of them with users."""
    for name, key in (("queuey", KEY), ("guest", GUEST_KEY)):
        bridge.run(store.applications.create_application(name))
        bridge.run(store.applications.add_key(name, digest_of(key)))
    return make_app(store, readers=patient_readers(users), private=users.keys())


def bearer(app: App, token: str, base: str = "/v1/queuey") -> Caller:
    return Caller(app, f"Bearer {token}", base)


def inbox(issuer: Issuer, user: str = "ann") -> str:
    return queue_name(PATTERN, user_name(issuer.name, user))


def test_capitals_of_the_scheme_do_not_count(owner: Caller, issuer: Issuer, app: App) -> None:
    """However ``Bearer`` is written, a token lets its user in, and a wrong one is refused."""
    mine = owner.create(inbox(issuer))
    assert Caller(app, f"bEARER {issuer.token('ann')}").get(mine).status == 200
    assert Caller(app, "BEARER x").get(mine).status == 401


NASTY = ["ann", "ann.dead", "ANN", "*", "ann\x00", "a/b", "a~2fb", "../ann", "{user}", "é", "e\u0301", "x" * 61]


def test_each_user_has_one_queue_of_all(owner: Caller, issuer: Issuer, app: App) -> None:
    """Whatever characters a user's name has, the token opens the queue of that name and no other."""
    queues = {user: owner.create(inbox(issuer, user)) for user in NASTY}
    for user in NASTY:
        caller = bearer(app, issuer.token(user))
        assert [other for other, queue in queues.items() if caller.get(queue).status == 200] == [user]


ROLES: dict[str, tuple[RoleVerb, ...]] = {
    **{verb: (verb,) for verb in VERBS},
    "deletes": ("read", "delete"),
    "works": ("read", "claim"),
    "overwrites": ("send", "delete"),
}


@pytest.fixture
def staff(store: Store, trusted: UserIssuer, app: App) -> App:
    """The application, with a role for each verb, and queues of all kinds."""
    service = app.service
    service.core.run(service.queues.create("queuey", "plain", QueueSpec()))
    service.core.run(service.queues.create("queuey", "public", QueueSpec(type="public")))
    service.core.run(service.queues.create("queuey", "owned", QueueSpec(principals=parse_principals(["app:queuey"]))))
    service.core.run(
        service.queues.create("queuey", "closed", QueueSpec(principals=parse_principals(["bid:bob@example.org"])))
    )
    service.core.run(service.queues.create("guest", "foreign", QueueSpec(principals=parse_principals(["app:queuey"]))))
    users = {"queuey": (msgspec.structs.replace(trusted, roles=ROLES),)}
    return make_app(store, readers=patient_readers(users), private=users.keys())


@pytest.mark.parametrize("held", [["read"], ["admin"], ["overwrites"], ["works", "deletes"]], ids=str)
def test_a_role_is_like_a_limited_key(staff: Any, store: Store, issuer: Issuer, held: list[str]) -> None:  # noqa: ANN401
    """A user with roles may do exactly what a key with their verbs may, and what every user may with the own queue."""
    verbs = {verb for role in held for verb in ROLES[role]}
    bridge.run(store.applications.add_key("queuey", digest_of("5" * 64), scope=parse_scope(verbs)))
    authorization: Authorization = staff.authorization

    def rights(credential: str) -> list[object]:
        request = blank_request(authorization=credential)
        caller = bridge.run(authorization.identify(request))
        own = [inbox(issuer, "bob"), inbox(issuer)]
        names = ["plain", "public", "owned", "closed", "nothing", own[0]]
        return [
            *(bridge.run(authorization.list_rights(request, "queuey", name)) for name in names),
            *(bridge.run(authorization.list_rights(request, "guest", name)) for name in ("foreign", "nothing")),
            *(caller.find_patterns("queuey", action) for action in get_args(Action)),
            *(caller.find_patterns("guest", action) for action in get_args(Action)),
        ]

    token = f"Bearer {issuer.token('ann', groups=['unknown', *held])}"
    assert rights(token) == rights(f"Application {'5' * 64}")
    listed = authorization.list_rights(blank_request(authorization=token), "queuey", inbox(issuer))
    assert {"read", "delete"} <= set(bridge.run(listed))


def test_what_is_no_role(staff: Any, issuer: Issuer) -> None:  # noqa: ANN401
    """A role counts if the claim is it, letter by letter, or a list that has it. All else does no harm."""
    texts = (None, "", "unknown", "ead", "read ", "read,send")
    for groups in (*texts, [], [["read"]], {"read": True}, ["READ"], 5, True, [None, 5]):
        ann = bearer(staff, issuer.token("ann", groups=groups, roles=["read"], role="read"))
        assert [ann.get(path).status for path in ("plain", "", "public")] == [403, 403, 200], groups
    assert bearer(staff, issuer.token("ann", groups="read")).get("plain").status == 200


def test_a_wrong_token_lets_nobody_in(owner: Caller, issuer: Issuer, app: App) -> None:
    """The answer is 401, names the scheme and the reason, and repeats nothing of the token."""
    mine = owner.create(inbox(issuer))
    for attack, (make, words) in ATTACKS.items():
        token = make(issuer)
        reply = bearer(app, token).get(mine)
        assert (reply.status, list(reply.errors)) == (401, ["InvalidToken"]), (attack, reply)
        assert words in reply.errors["InvalidToken"], attack
        assert reply.headers["WWW-Authenticate"] == 'Bearer realm="queuey", error="invalid_token"'
        assert not any(part in reply.text for part in token.split(".") if len(part) > 3), attack
        assert bearer(app, issuer.token("ann")).get(mine).status == 200, attack


@pytest.mark.parametrize("kind", ["ES256", "ES384", "RS256", "PS256", "EdDSA"])
def test_kinds_of_keys(store: Store, kind: Any) -> None:  # noqa: ANN401 - a literal
    """Tokens signed with each usual algorithm are read."""
    issuer = Issuer(kind=kind)
    bridge.run(store.applications.create_application("queuey"))
    with serving(issuer.make_key_set()) as keys:
        trusted = UserIssuer(issuer=issuer.name, audience=AUDIENCE, keys=keys.url)
        authorization: Authorization = make_app(store, readers=patient_readers({"queuey": (trusted,)})).authorization
        caller = bridge.run(authorization.identify(blank_request(authorization=f"Bearer {issuer.token('ann')}")))
    assert caller.names == {f"queuey {user_name(issuer.name, 'ann')}"}


def test_what_may_differ(owner: Caller, issuer: Issuer, app: App) -> None:
    """Clocks may differ a little; one audience of several is enough; an only key need not be named."""
    mine = owner.create(inbox(issuer))
    now = int(time.time())
    for token in (
        issuer.token(exp=now - 5),
        issuer.token(nbf=now + 10, iat=now + 10),
        issuer.token(aud=["billing", AUDIENCE]),
        issuer.token(headers={"kid": None}),
        issuer.token(headers={"typ": None}),
        issuer.token(headers={"typ": "at+jwt"}),
        issuer.token(exp=now + 600.5),
        issuer.token(iat=None, nbf=None),
    ):
        assert bearer(app, token).get(mine).status == 200


def test_keys_that_are_for_something_else(owner: Caller, issuer: Issuer, keys: KeyServer, app: App) -> None:
    """Secrets, keys for encryption, private and short keys in the set, and keys of odd forms, check no signature."""
    owner.create(inbox(issuer))
    own = issuer.jwk("first")
    odd: list[Any] = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"},
        {**own, "kid": "encrypts", "use": "enc"},
        {**own, "kid": "wraps", "key_ops": ["wrapKey"]},
        {**own, "kid": "private", "d": own["x"]},
        {**own, "kid": "other algorithm", "alg": "ES384"},
        {**own, "kid": "off the curve", "x": own["y"]},
        {**own, "kid": ["list"]},
        {"kty": ["EC"], "kid": "list"},
        *("text", 1, None, {}),
    ]
    issuer.further = odd
    keys.content = issuer.make_key_set()
    for name in [each["kid"] for each in odd if isinstance(each, dict) and isinstance(each.get("kid"), str)]:
        reply = bearer(app, issuer.token(headers={"kid": name})).get(inbox(issuer))
        assert (name, reply.status) == (name, 401)


class TestSeveral:
    """Several applications and issuers together."""

    @pytest.fixture
    def other(self) -> Issuer:
        """Another issuer, which has the same people by the same names."""
        second_issuer = Issuer("https://login.example.com")
        second_issuer.keys = {"first": ("ES256", known_key("ES256", 1))}
        return second_issuer

    @pytest.fixture
    def users(self, trusted: UserIssuer, other: Issuer, keys: KeyServer) -> Iterator[dict[str, tuple[UserIssuer, ...]]]:
        """Users of applications: both trust one issuer, each for its own audience, and one trusts a second issuer."""
        guests = msgspec.structs.replace(trusted, audience="guests", user="nick", queues={PATTERN: ("read",)})
        with serving(other.make_key_set()) as server:
            second = msgspec.structs.replace(trusted, issuer=other.name, keys=server.url)
            yield {"queuey": (trusted, second), "guest": (guests,)}

    def test_the_same_name_of_another_issuer_is_another_user(
        self, owner: Caller, issuer: Issuer, other: Issuer, app: App
    ) -> None:
        """Each issuer's ``ann`` has a queue of her own."""
        for name in (inbox(issuer), inbox(other)):
            owner.create(name)
        ours, theirs = bearer(app, issuer.token("ann")), bearer(app, other.token("ann"))
        assert [ours.get(inbox(issuer)).status, ours.get(inbox(other)).status] == [200, 403]
        assert [theirs.get(inbox(issuer)).status, theirs.get(inbox(other)).status] == [403, 200]

    def test_a_user_of_one_application_is_nobody_to_another(
        self, owner: Caller, guest: Caller, issuer: Issuer, app: App
    ) -> None:
        """A token is for the applications of its audience, also where a queue of another one names the user."""
        name = user_name(issuer.name, "ann")
        owner.create(inbox(issuer))
        owner.create("named", principles=f"{name}=read")
        mine = Caller(guest.app, guest.authorization, "/v1/guest")
        mine.create(inbox(issuer))
        token, guests = issuer.token("ann"), issuer.token("x", nick="ann", aud="guests")
        ours, nick = bearer(app, token), bearer(app, guests)
        assert [ours.get(inbox(issuer)).status, ours.get("named").status] == [200, 200]
        assert [nick.get(inbox(issuer)).status, nick.get("named").status] == [403, 403]
        assert bearer(app, guests, "/v1/guest").get(inbox(issuer)).status == 200
        assert bearer(app, token, "/v1/guest").get(inbox(issuer)).status == 403


def test_a_queue_can_name_a_user(owner: Caller, issuer: Issuer, app: App) -> None:
    """The name of a user is a principal: with it a queue outside of all patterns is opened to that user alone."""
    owner.create("team", principles=f"{user_name(issuer.name, 'ann')}=read,app:queuey")
    owner.post("team", "hello")
    assert bearer(app, issuer.token("ann")).get("team").bodies == ["hello"]
    assert bearer(app, issuer.token("ann"))("DELETE", f"team/{ID}").status == 403
    assert bearer(app, issuer.token("bob")).get("team").status == 403


def test_a_token_is_remembered_to_its_end(store: Store, trusted: UserIssuer, issuer: Issuer, keys: KeyServer) -> None:
    """A token is cached by its hash, and not beyond its end or ``max_cache_seconds`` of its reader."""
    clock = {"now": 0.0}
    bridge.run(store.applications.create_application("queuey"))
    app = make_app(store, readers=patient_readers({"queuey": (trusted,)}), clock=lambda: clock["now"])
    authenticate = app.authenticate
    for seconds, end in ((60, 60 + trusted.leeway), (6000, Bearer.max_cache_seconds)):
        token = issuer.token("ann", exp=int(time.time()) + seconds)
        began = clock["now"]
        assert bridge.run(authenticate(f"Bearer {token}")).tenant == "users of queuey"
        clock["now"] = began + end - 10
        assert authenticate.cached_caller(f"Bearer {token}") is not None
        clock["now"] = began + end
        assert authenticate.cached_caller(f"Bearer {token}") is None
        assert token not in repr(authenticate._cache)


def test_without_users_a_token_is_nothing(owner: Caller, store: Store, issuer: Issuer) -> None:
    """A service without the setting takes a token as it takes any scheme that it does not know."""
    owner.create("q", type="public")
    app = make_app(store)
    assert bearer(app, "x").get("q").status == 200
