"""The quiz of lesson 17."""

QUIZ = """
An engine with a cache passes every item of `answers`. Then a running request is aborted, its id comes again with
another prompt, and the first token of the new answer is wrong. What of the old request was left?
- Its place in the queue => Then the old request itself would go on, and get tokens after its abort.
- Its `max_tokens` => Then the new answer might end too early or too late. Its first token would be right.
+ Its cache, kept under the id
  The new prompt joins keys and values of another text, and the model continues both. Drop the cache however a request
  ends, or make a new one wherever a request begins.
- Nothing: greedy answers differ from run to run.
  Nothing in greedy decoding is random. The same prompt alone gets the same first token.

Four requests want 30 tokens each and run at once, and the model's passes are counted. Which count shows that all four
share each pass?
- 4 => One pass computes one new token of each request, so 30 tokens can't come from 4 passes.
+ About 30 => One pass for each token, for all four requests together. The prompts are part of the first.
- About 120 => That is one pass for each token of each request: a loop over requests.
- About 64 => Then two requests share each pass, and the other two wait.

After `abort("a")`, an engine's next step returns `[NewTokens("a", [], "abort")]`, and nothing more comes for it. Your
test fails on this engine. Whose mistake is it?
- The engine's: nothing may follow an abort. => No *token* may follow, and none does: `token_ids` is empty.
- The engine's: without requests, `step` returns [].
  The contract has a place for this: the next `step` may return such a notice, and needn't.
- The contract's: it allows an engine with this notice and one without.
  A contract fixes what callers rely on, and leaves the rest open. They don't rely on the notice.
+ The test's: it forbids more than the contract does.
  It would fail on an engine that is right. Look at `token_ids`, not at whether an event comes.

A request has `max_tokens=8`, and its eighth token is one of its stop tokens. The engine returns that token with the
reason "length". What is wrong?
+ The reason: it must be "stop".
  If both hold after the same token, "stop" comes before "length". So a client learns that the answer wasn't cut.
- The token: a stop token isn't part of the answer.
  Here it is: the contract says that the token that ends the answer is one of `token_ids`.
- The end: the limit doesn't hold for stop tokens.
  `max_tokens` is the most tokens of the answer, whichever they are. And a stop token ends it anyway.
- Nothing: both reasons hold, so the engine may choose.
  Where an engine may choose, the contract says so. Here it says which comes first.
"""
