"""The ledger of model turns, accounts and budget warnings."""
