"""The assessment: a bank of questions, exams drawn from it by seed, marks, and a certificate."""
