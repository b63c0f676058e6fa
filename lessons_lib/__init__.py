"""Reference code of the course: one module a lesson.

Importing the package loads nothing heavy; torch and transformers are loaded by the modules that use them.
"""

__version__ = "0.1.0"
