"""Judges any engine by the same items: `python -m lessons_lib.conformance module:make_engine`.

Read `contract` first: what an engine offers. `levels` has the items, from one request to a server; `driver` steps an
engine and refuses what no engine may return; `oracle` has the right answers, from Hugging Face `generate`; `report`
tries the items and says which levels are reached. `adapters` puts the course's engine
behind the contract, and examples/engines those of others.

For lesson 17, `capstone` makes the empty package, `level_table` shows a report and what to do next, `scoreboard` races
an engine against the course's, and `examples` has an engine written from scratch.
"""
