"""The course as web pages: `make site`.

Read in this order: sources (pages from the solved notebooks), code_pages (the source code that they link to),
front_page (index.html), facts (its numbers), share (what other sites show of a page), doors (links that open a notebook
elsewhere), conf (the settings of Sphinx), __main__ (the build).
"""
