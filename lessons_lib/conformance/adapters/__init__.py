"""Adapters: engines of others behind the contract. Each is a module with `make_engine(model, limits, tokenizer)`."""
