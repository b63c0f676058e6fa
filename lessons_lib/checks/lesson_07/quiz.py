QUIZ = []
