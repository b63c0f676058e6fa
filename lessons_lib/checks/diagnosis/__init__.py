"""Diagnosis: runs an answer beside the reference, and names the known mistake that it makes.

An exercise is a reference, cases, what can be seen in a case, and the mistakes that learners make, each a small change
of the reference with the sentence that explains it. CONTRIBUTING.md says how to write one.
"""

from lessons_lib.checks.diagnosis.mistakes import Known, mistakes
from lessons_lib.checks.diagnosis.task import Task, without_one
from lessons_lib.checks.diagnosis.telling import Shown, brief, kind
from lessons_lib.checks.diagnosis.watching import Differs, Watch, calls, frozen, is_tensor, same
