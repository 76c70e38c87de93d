# make run    talk to an agent in this terminal, or pipe a message in
# make check  style, types, the direction of imports, words
# make test   the whole test suite

.PHONY: run check test

# Without .pyc files every start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

run:
	@scripts/setup run
	@exec .venv/bin/palyra chat

check:
	@scripts/check

test:
	@scripts/test
