"""The engine room: a page on which the whole engine plays.

Read in this order: room (the engine, without the model), recording (the run that plays at once), page/ (what the
browser gets: room.js is the page, worker.js the engine, model.js with kernels.ts the model), build, and notebook (a
cell that shows it).
"""
