"""Who may make, see and revoke which token, and what each of them is good for."""

from datetime import timedelta

import pytest

from palyra.core.clock import to_ms
from palyra.core.errors import PalyraError
from palyra.core.ids import PrincipalId, TokenId
from palyra.core.message import TextInvalid
from palyra.core.token import TokenScope, TokenScopeMissing
from palyra.gateway.auth import REMEMBERED_SECONDS, Auth
from palyra.gateway.error_status import Unauthenticated
from palyra.gateway.rate_limit import RateLimiter, RequestRateExceeded
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import agents, tokens
from palyra.journal.stores.tokens import ALL, TokenHolder, TokenRecord
from palyra.runs.services.tokens import (
    MAX_TOKENS,
    TokenLimitReached,
    TokenNotFound,
    TokenRequestInvalid,
    TokenScopeExceeded,
    TokenService,
)
from tests.contract.database import Database
from tests.contract.journal.builders import BEN, CountedIds, an_id
from tests.support.builders import ANA
from tests.support.clock import FakeClock

READ, WRITE, ADMIN = TokenScope.READ, TokenScope.WRITE, TokenScope.ADMIN
OPERATOR = PrincipalId("user:owner")


def holder(principal: PrincipalId, *scopes: TokenScope, expires_ms: int | None = None) -> TokenHolder:
    return TokenHolder(principal, frozenset(scopes), TokenId(an_id(999)), expires_ms)


ROOT = holder(OPERATOR, *ALL)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def doors(engine: Engine, clock: FakeClock) -> TokenService:
    return TokenService(engine, clock=clock, ids=CountedIds())


@pytest.fixture
def auth(engine: Engine, clock: FakeClock) -> Auth:
    return Auth(engine, clock=clock)


# -- the store


def a_token(place: int = 1, **changes: object) -> TokenRecord:
    fields = {"principal": ANA, "name": "laptop", "created_ms": 1_000, **changes}
    return TokenRecord(TokenId(an_id(place)), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("scopes", [{READ}, {WRITE}, {READ, WRITE}, ALL])
def test_a_token_keeps_its_scopes_and_its_end(conn: Connection, scopes: set[TokenScope]) -> None:
    record = a_token(scopes=frozenset(scopes), expires_ms=5_000)
    tokens.insert(conn, record, "secret")

    assert tokens.get(conn, record.token_id) == record
    found = tokens.principal_of(conn, tokens.digest("secret"))
    assert found == TokenHolder(ANA, frozenset(scopes), record.token_id, 5_000, record.created_ms)


def test_a_token_from_before_there_were_scopes_may_do_everything(conn: Connection) -> None:
    conn.execute(
        "INSERT INTO tokens (token_id, principal, digest, name, created_ms) VALUES ('x', :ana, 'd', 'old', 1)",
        {"ana": ANA},
    )
    found = tokens.principal_of(conn, "d")
    assert found is not None
    assert (found.scopes, found.expires_ms) == (ALL, None)


def test_a_scope_that_nobody_knows_gives_nothing(conn: Connection) -> None:
    tokens.insert(conn, a_token(), "secret")
    conn.execute("UPDATE tokens SET scopes = 'read,superuser,administrator'")
    found = tokens.principal_of(conn, tokens.digest("secret"))
    assert found is not None
    assert found.scopes == {READ}


def test_the_lists_leave_out_what_was_revoked_and_go_page_by_page(conn: Connection) -> None:
    for place in range(1, 7):
        tokens.insert(conn, a_token(place, principal=ANA if place % 2 else BEN), f"secret {place}")
    tokens.revoke(conn, TokenId(an_id(3)), now_ms=2_000)

    everybody = tokens.page(conn, before=TokenId("~"), limit=3)
    rest = tokens.page(conn, before=everybody[-1].token_id, limit=3)
    ana = tokens.page_of(conn, ANA, before=TokenId("~"), limit=10)

    assert [token.token_id for token in everybody + rest] == [an_id(place) for place in (6, 5, 4, 2, 1)]
    assert [token.token_id for token in ana] == [an_id(5), an_id(1)]


def test_what_was_revoked_stays_revoked_since_then(conn: Connection) -> None:
    tokens.insert(conn, a_token(), "secret")
    assert not tokens.is_revoked(conn, tokens.digest("secret"))

    tokens.revoke(conn, TokenId(an_id(1)), now_ms=2_000)
    tokens.revoke(conn, TokenId(an_id(1)), now_ms=3_000)

    assert tokens.is_revoked(conn, tokens.digest("secret"))
    assert not tokens.is_revoked(conn, tokens.digest("another"))
    found = tokens.get(conn, TokenId(an_id(1)))
    assert found is not None
    assert found.revoked_ms == 2_000


# -- making


async def test_a_new_token_proves_its_principal(doors: TokenService, auth: Auth) -> None:
    record, secret = await doors.create(ROOT, BEN, name="phone")

    assert (await auth.admit(f"Bearer {secret}")).principal == BEN
    assert (record.principal, record.name, record.expires_ms) == (BEN, "phone", None)
    assert record.scopes == {READ, WRITE}


async def test_two_tokens_are_never_alike(doors: TokenService) -> None:
    secrets = {(await doors.create(ROOT, name="x"))[1] for _ in range(20)}
    assert len(secrets) == 20
    assert all(len(secret) >= 50 for secret in secrets)


async def test_the_secret_is_nowhere_in_the_database(doors: TokenService, database: Database) -> None:
    _, secret = await doors.create(ROOT, BEN, name="phone")
    assert secret not in repr(database.dump())


async def test_a_new_principal_has_an_agent_at_once_and_keeps_it(doors: TokenService, engine: Engine) -> None:
    await doors.create(ROOT, BEN, name="phone")
    agent = await engine.read(lambda conn: agents.default(conn, BEN))
    await doors.create(ROOT, BEN, name="laptop")

    assert agent is not None
    assert await engine.read(lambda conn: agents.of(conn, BEN)) == [agent]


async def test_who_may_administer_may_do_everything(doors: TokenService) -> None:
    record, _ = await doors.create(ROOT, BEN, name="x", scopes={ADMIN})
    assert record.scopes == ALL


@pytest.mark.parametrize(
    ("principal", "why"),
    [
        ("ben", "is not a valid principal"),
        ("system:scheduler", "is not a valid principal"),
        ("channel:discord:main", "is not a valid principal"),
    ]
    + [
        (text, "is not a valid principal")
        for text in ("user:", "user:a b", "user:a\n", "USER:a", "user:é", "user:" + "x" * 101)
    ],
)
async def test_a_token_is_for_a_person_or_a_service(doors: TokenService, principal: str, why: str) -> None:
    with pytest.raises(TokenRequestInvalid, match=why):
        await doors.create(ROOT, principal, name="x")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"name": " "}, "1 to 80"),
        ({"name": "x" * 81}, "1 to 80"),
        ({"scopes": ()}, "at least one scope"),
        ({"ttl": timedelta(0)}, "between one second"),
        ({"ttl": timedelta(days=4000)}, "and ten years"),
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(doors: TokenService, wrong: dict[str, object], why: str) -> None:
    with pytest.raises(TokenRequestInvalid, match=why):
        await doors.create(ROOT, **{"name": "x", **wrong})  # type: ignore[arg-type]


async def test_a_name_that_no_database_holds_is_refused(doors: TokenService) -> None:
    with pytest.raises(TextInvalid):
        await doors.create(ROOT, name="a\0b")


async def test_one_principal_has_so_many_tokens_and_no_more(
    doors: TokenService, engine: Engine, clock: FakeClock
) -> None:
    def unit(conn: Connection) -> None:
        for place in range(MAX_TOKENS):
            tokens.insert(conn, a_token(place, expires_ms=None if place else to_ms(clock.now()) + 1), str(place))

    await engine.write(unit)
    with pytest.raises(TokenLimitReached):
        await doors.create(ROOT, ANA, name="one more")

    await doors.create(ROOT, BEN, name="another's")
    clock.advance(timedelta(milliseconds=1))
    await doors.create(ROOT, ANA, name="in place of the one that has expired")


# -- without admin


async def test_without_admin_one_makes_tokens_for_oneself_only(doors: TokenService) -> None:
    ana = holder(ANA, READ, WRITE)

    record, _ = await doors.create(ana, name="phone")

    assert record.principal == ANA
    with pytest.raises(TokenScopeMissing, match="'admin'"):
        await doors.create(ana, BEN, name="phone")


@pytest.mark.parametrize("asked", [{ADMIN}, {READ, WRITE}, {WRITE}])
async def test_without_admin_one_gives_no_more_than_one_has(doors: TokenService, asked: set[TokenScope]) -> None:
    with pytest.raises(TokenScopeExceeded):
        await doors.create(holder(ANA, READ), name="x", scopes=asked)


@pytest.mark.parametrize("scopes", [(READ, WRITE), tuple(ALL)])
async def test_a_token_that_ends_makes_none_that_outlives_it(
    doors: TokenService, clock: FakeClock, scopes: tuple[TokenScope, ...]
) -> None:
    guest = holder(ANA, *scopes, expires_ms=to_ms(clock.now()) + 60_000)

    await doors.create(guest, name="shorter", ttl=timedelta(seconds=60))
    for ttl in (None, timedelta(seconds=61)):
        with pytest.raises(TokenScopeExceeded):
            await doors.create(guest, name="longer", ttl=ttl)


async def test_an_admin_sees_all_tokens_and_others_their_own(doors: TokenService) -> None:
    for principal in (ANA, BEN):
        await doors.create(ROOT, principal, name="x")

    async def seen(actor: TokenHolder, principal: str | None = None) -> set[str]:
        return {token.principal for token in await doors.list(actor, principal)}

    assert await seen(ROOT) == {ANA, BEN}
    assert await seen(ROOT, BEN) == {BEN}
    assert await seen(holder(ANA, READ)) == {ANA}
    assert await seen(holder(ANA, READ), ANA) == {ANA}
    with pytest.raises(TokenScopeMissing):
        await seen(holder(ANA, READ, WRITE), BEN)


async def test_without_admin_the_token_of_another_is_as_if_it_were_not_there(doors: TokenService, auth: Auth) -> None:
    record, secret = await doors.create(ROOT, BEN, name="x")

    refusals = []
    for token_id in (record.token_id, an_id(5)):
        with pytest.raises(TokenNotFound) as refused:
            await doors.revoke(holder(ANA, READ, WRITE), token_id)
        refusals.append(refused.value.detail)

    assert len(set(refusals)) == 1
    assert (await auth.admit(f"Bearer {secret}")).principal == BEN


# -- what a token is good for


async def test_a_revoked_token_is_good_for_nothing(doors: TokenService, auth: Auth, clock: FakeClock) -> None:
    record, secret = await doors.create(ROOT, BEN, name="x")
    await auth.admit(f"Bearer {secret}")

    revoked = await doors.revoke(holder(BEN, READ, WRITE), record.token_id)

    assert revoked.revoked_ms == to_ms(clock.now())
    clock.advance(timedelta(seconds=REMEMBERED_SECONDS))
    with pytest.raises(Unauthenticated):
        await auth.admit(f"Bearer {secret}")


async def test_what_was_forgotten_is_looked_up_at_once(doors: TokenService, auth: Auth) -> None:
    record, secret = await doors.create(ROOT, BEN, name="x")
    await auth.admit(f"Bearer {secret}")
    await doors.revoke(ROOT, record.token_id)

    auth.forget()

    with pytest.raises(Unauthenticated):
        await auth.admit(f"Bearer {secret}")


async def test_a_token_ends_on_time_even_if_it_was_just_looked_up(
    doors: TokenService, auth: Auth, clock: FakeClock
) -> None:
    _, secret = await doors.create(ROOT, BEN, name="x", ttl=timedelta(seconds=1))
    assert (await auth.admit(f"Bearer {secret}")).principal == BEN

    clock.advance(timedelta(seconds=1))

    with pytest.raises(Unauthenticated, match="expired"):
        await auth.admit(f"Bearer {secret}")


@pytest.mark.parametrize("scopes", [{READ}, {WRITE}, {READ, WRITE}, {ADMIN}])
async def test_a_token_is_good_for_its_scopes_only(doors: TokenService, auth: Auth, scopes: set[TokenScope]) -> None:
    record, secret = await doors.create(ROOT, BEN, name="x", scopes=scopes)

    for need in record.scopes:
        assert (await auth.admit(f"Bearer {secret}", need=need)).principal == BEN
    for need in ALL - record.scopes:
        with pytest.raises(TokenScopeMissing, match=f"lacks the scope '{need}'"):
            await auth.admit(f"Bearer {secret}", need=need)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic x", "Bearer palyra_x", "palyra_x"])
async def test_what_is_no_token_is_good_for_nothing(auth: Auth, header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        await auth.admit(header)


async def test_requests_are_counted_for_each_principal(engine: Engine, doors: TokenService, clock: FakeClock) -> None:
    auth = Auth(engine, clock=clock, rate=RateLimiter(clock, lambda: (1, 2)))
    ana, also_ana, ben = [(await doors.create(ROOT, whose, name="x"))[1] for whose in (ANA, ANA, BEN)]
    await auth.admit(f"Bearer {ana}")
    # What is refused for want of a scope was a request too.
    with pytest.raises(TokenScopeMissing):
        await auth.admit(f"Bearer {also_ana}", need="admin")

    for secret in (ana, also_ana):
        with pytest.raises(RequestRateExceeded) as refused:
            await auth.admit(f"Bearer {secret}")
        assert isinstance(refused.value, PalyraError)
    assert (await auth.admit(f"Bearer {ben}")).principal == BEN
