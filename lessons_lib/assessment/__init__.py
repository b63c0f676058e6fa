"""The assessment: a bank of questions, exams drawn from it by seed, marks, and a certificate.

Read in this order: question, bank (a module for each lesson), draw, mark, certificate; then the two ways of taking an
exam, terminal and notebook.

>>> from lessons_lib.assessment import exam, answer, finish
>>> exam(7)
>>> answer(1, "b")
>>> finish("Ada")
"""

from lessons_lib.assessment.certificate import verify
from lessons_lib.assessment.draw import draw_exam
from lessons_lib.assessment.mark import mark
from lessons_lib.assessment.notebook import answer, exam, finish

__all__ = ["answer", "draw_exam", "exam", "finish", "mark", "verify"]
