"""Makes somebody the one who administers a world."""

from palyra.core.clock import to_ms
from palyra.core.ids import PrincipalId, TokenId
from palyra.journal.stores import tokens
from palyra.journal.stores.tokens import TokenRecord
from tests.support.world import World


async def administers(world: World, principal: PrincipalId) -> None:
    """Give a principal a token that may do everything."""
    record = TokenRecord(TokenId(world.ids.new()), principal, "", to_ms(world.clock.now()))
    await world.engine.write(lambda conn: tokens.insert(conn, record, tokens.new_secret()))
