"""What only an ordinary user can be kept from. `.ci/run` tries the files that use this also as one, if it is root."""

import os

import pytest

ordinary_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
