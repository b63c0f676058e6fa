"""The load report of lesson 17: the numbers of a run, computed from its raw log, and checked against it.

`numbers` has a report from the raw log. `rules` has the same with one rule changed, as it is easily got wrong, and
`checking` says which number differs, and which of these rules gives it. `recorded` has a log to try it on.
"""
