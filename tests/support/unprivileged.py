"""What only an ordinary user can be kept from. `.ci/run` tries the files that use this also as one, if it is root."""

from tests.support.needs import ORDINARY_USER, needs

ordinary_user = needs(ORDINARY_USER)
