"""The exam: a bank of questions as data (`bank.yaml`), exams drawn from it by seed, marks, and a certificate.

Read in this order: question, exam, certificate, __main__ (the exam in a terminal).
"""
