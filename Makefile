# Every target is one call of course.py, which also works without make:
#     python3 course.py lab          (Windows: py course.py lab)
#
# PYTHON       the Python that .venv is made from            make lab PYTHON=python3.12
# PORT         the port of JupyterLab or of the server       make lab PORT=9999
# MODEL        for doctor and serve: another model           make serve MODEL=path/to/model
# ARGS         handed on to the program that is started      make test ARGS="-k allocator"
# FOLDER       for class and nbgrader: where the exports are, where the course goes
# TORCH_INDEX  package index for torch, or "none"            make lab TORCH_INDEX=https://download.pytorch.org/whl/cu130

PYTHON ?= python3
PORT ?=
ARGS ?=
FOLDER ?=
MODEL ?=
COURSE = $(PYTHON) course.py

.PHONY: help lab update export class nbgrader test quick doctor bench soak serve chat-model notebooks site verify

help:
	@echo "make lab        install the course into .venv and open your copy of the lessons, work/ (PORT=9999, ARGS=...)"
	@echo "make update     bring work/ to the newest lessons in this folder and keep your answers"
	@echo "make export     write all your answers, predictions and progress into work/export.json"
	@echo "make class      a table and a heat map of the exports in a folder (FOLDER=exports)"
	@echo "make nbgrader   an nbgrader course with an assignment for each lesson (FOLDER=course)"
	@echo "make test       install the test tools too and run all tests (ARGS=\"-k name\")"
	@echo "make quick      the tests without notebooks, browser and nbgrader: less than two minutes"
	@echo "make doctor     say what was found on this machine, and what to do about each problem (MODEL=... about a model)"
	@echo "make bench      measure every way of serving from lesson 00 to the engine, and kernels where there is a GPU"
	@echo "make soak       10,000 requests, with aborts, faults and too little memory (ARGS=\"--count 5\": 500 requests)"
	@echo "make serve      an OpenAI-compatible server and a page to try it (MODEL=..., PORT=8000, ARGS=\"--help\")"
	@echo "make chat-model download a small chat model, which serve and lessons 14 and 15 use if it is there"
	@echo "make notebooks  rebuild notebooks/ and solutions/*.ipynb from solutions/*.py"
	@echo "make site       the lessons as web pages, with live pictures and no kernel, in build/site"
	@echo "make verify     mark the answers of an exam's certificate again (ARGS=certificate.html)"
	@echo "make help       this list"

lab:
	@$(COURSE) lab --port "$(PORT)" $(ARGS)

update:
	@$(COURSE) update

export:
	@$(COURSE) export

test:
	@$(COURSE) test $(ARGS)

quick:
	@$(COURSE) quick $(ARGS)

doctor:
	@$(COURSE) doctor $(if $(MODEL),--model "$(MODEL)") $(ARGS)

bench:
	@$(COURSE) bench $(ARGS)

soak:
	@$(COURSE) soak $(ARGS)

serve:
	@$(COURSE) serve $(if $(MODEL),--model "$(MODEL)") $(if $(PORT),--port "$(PORT)") $(ARGS)

chat-model:
	@$(COURSE) chat-model $(ARGS)

notebooks:
	@$(COURSE) notebooks $(ARGS)

class:
	@$(COURSE) class $(if $(FOLDER),"$(FOLDER)") $(ARGS)

nbgrader:
	@$(COURSE) nbgrader $(if $(FOLDER),"$(FOLDER)") $(ARGS)

site:
	@$(COURSE) site $(ARGS)

verify:
	@$(COURSE) verify $(ARGS)
