"""What the tests of other servers check, restated as behaviors of this one: the OpenAI-compatible API."""

from tools.peers import Topic

# A line for name and sentence of a behavior, one for its source, and one for each test.
# fmt: off

SERVING_PROJECTS = {
    "vLLM/server": "tests/entrypoints of the main branch, commits a4022a3, 2f6f059, ca055c1, 35daaf4, 0c29238, 5cc6151, 6052d63",
    "llama.cpp": "tools/server/tests/unit, commits f3beb22, 1e6964f, 01dca87, ac18090",
    "transformers/serve": "tests/cli/test_serve.py, commit 00cf8b1; names without their class",
}

V_COMPLETION = "vLLM/server tests/entrypoints/openai/completion/test_completion.py::"
V_COMPLETION_ERROR = "vLLM/server tests/entrypoints/openai/completion/test_completion_error.py::"
V_PROMPT = "vLLM/server tests/entrypoints/openai/completion/test_prompt_validation.py::"
V_CHAT = "vLLM/server tests/entrypoints/openai/chat_completion/test_chat.py::"
V_BIAS = "vLLM/server tests/entrypoints/openai/chat_completion/test_chat_logit_bias_validation.py::"
V_BODY = "vLLM/server tests/entrypoints/openai/chat_completion/test_non_object_body_validation.py::"
V_BASIC = "vLLM/server tests/entrypoints/openai/basic/test_basic.py::"
V_IDS = "vLLM/server tests/entrypoints/openai/basic/test_return_token_ids.py::"
V_TOKENIZE = "vLLM/server tests/entrypoints/openai/test_tokenization.py::"
L_COMPLETION = "llama.cpp tools/server/tests/unit/test_completion.py::"
L_CHAT = "llama.cpp tools/server/tests/unit/test_chat_completion.py::"
L_BASIC = "llama.cpp tools/server/tests/unit/test_basic.py::"
L_SECURITY = "llama.cpp tools/server/tests/unit/test_security.py::"
L_TOKENIZE = "llama.cpp tools/server/tests/unit/test_tokenize.py::"
HF_SERVE = "transformers/serve tests/cli/test_serve.py::"

SAME = "serving/http/test_same_tokens.py::"
CLIENT = "serving/http/test_openai_client.py::"
BAD = "serving/http/test_bad_requests.py::"
GONE = "serving/http/test_disconnects.py::"
TEMPLATES = "serving/http/test_templates.py::"

NO_TOOLS = "The answer is text: tools are refused by name."
TEXT_ONLY = "Models read text only; other parts of a message are refused by name."
NO_SLOTS = "There are no fixed slots: what runs is in `/metrics`."
ONE_MODEL = "A server has one model, which is loaded before it listens."

completions = Topic("http-completions", "HTTP: completions")
completions.held(
    "greedy", "A completion has its text, its finish reason and its usage.",
    V_COMPLETION + "test_single_completion",
    SAME + "test_completions")
completions.held(
    "token-ids", "A prompt may be a list of token ids.",
    V_COMPLETION + "test_single_completion (token ids)",
    SAME + "test_one_prompt_of_token_ids")
completions.held(
    "batch", "Several prompts, texts or lists of token ids, are answered as choices in their order, in one piece and streamed.",
    V_COMPLETION + "test_batch_completions",
    SAME + "test_several_prompts_are_choices_in_their_order")
completions.held(
    "n", "`n` completions of a prompt have their own indices, texts and finish reasons.",
    V_COMPLETION + "test_parallel_no_streaming",
    SAME + "test_completions", SAME + "test_several_prompts_are_choices_in_their_order")
completions.held(
    "n-streamed", "Completions that are streamed together say in each chunk to which of them it belongs.",
    V_COMPLETION + "test_parallel_streaming",
    SAME + "test_completions")
completions.held(
    "stream", "A stream has the text of the response in one piece, and its finish reason once, in the last chunk.",
    V_COMPLETION + "test_completion_streaming",
    SAME + "test_completions")
completions.held(
    "openai-library", "The `openai` client reads completions and their streams.",
    L_COMPLETION + "test_completion_stream_with_openai_library",
    CLIENT + "test_usage_in_every_chunk", CLIENT + "test_many_async_streams_at_once")
completions.held(
    "stop-streamed", "A stop string ends a stream, and nothing of it is shown.",
    L_COMPLETION + "test_completion_stream_with_openai_library_stops",
    SAME + "test_completions")
completions.held(
    "same-seed", "The same seed draws the same completion, whatever else runs.",
    L_COMPLETION + "test_consistent_result_same_seed",
    SAME + "test_completions")
completions.held(
    "other-seed", "Other seeds draw other completions.",
    L_COMPLETION + "test_different_result_different_seed",
    CLIENT + "test_several_choices_with_logprobs")
completions.held(
    "parallel", "Requests that are served at the same time get what each gets alone.",
    L_COMPLETION + "test_completion_parallel_slots",
    CLIENT + "test_many_async_streams_at_once")
completions.held(
    "prompt-cache", "What a prompt has in common with an earlier one comes from the cache, and the usage says how much.",
    L_COMPLETION + "test_completion_prompt_cache",
    CLIENT + "test_prefix_cache_is_in_the_usage")
completions.held(
    "logit-bias", "A bias of -100 keeps a token out.",
    L_COMPLETION + "test_logit_bias",
    SAME + "test_completions")
completions.held(
    "finish-stop", "The end token ends a completion with the finish reason \"stop\".",
    HF_SERVE + "test_finish_reason_stop",
    SAME + "test_completions")
completions.held(
    "finish-length", "`max_tokens` ends a completion with the finish reason \"length\".",
    HF_SERVE + "test_finish_reason_length",
    SAME + "test_completions")
completions.held(
    "stop", "A stop string ends a completion and is no part of it.",
    HF_SERVE + "test_stop_strings (completions)",
    SAME + "test_completions")
completions.held(
    "temperature-0", "Temperature 0 takes the likeliest token.",
    HF_SERVE + "test_temperature_zero_disables_sampling",
    SAME + "test_completions")
completions.held(
    "echo", "With `echo` the text begins with the prompt, whose log-probabilities come first; its first token has none.",
    V_COMPLETION + "test_echo_logprob_completion",
    SAME + "test_echo_puts_the_prompt_in_front")
completions.held(
    "return-token-ids", "`return_token_ids` adds the tokens of prompt and completion.",
    V_IDS + "test_basic_completion_with_emoji",
    SAME + "test_completions")
completions.held(
    "return-token-ids-streamed", "In a stream, the prompt's tokens come once, with the first chunk.",
    V_IDS + "test_chat_completion_with_emoji_and_token_ids (streamed)",
    SAME + "test_chunks_have_the_same_fields_with_and_without_the_short_cut")
completions.held(
    "chat-return-token-ids", "A chat's answer has the tokens of the prompt as the template wrote it.",
    V_IDS + "test_chat_completion_with_emoji_and_token_ids",
    SAME + "test_chat", TEMPLATES + "test_tokenize_a_chat")
completions.not_offered(
    "suffix", "`suffix` is appended to the text.",
    HF_SERVE + "test_suffix",
    "OpenAI's suffix is what the model has to fill in before; a model that only writes on can't, so it is refused.")
completions.not_offered(
    "beam-search", "Beam search finds the likeliest completions.",
    V_COMPLETION + "test_batch_completions (use_beam_search)",
    "Completions are drawn, not searched; the field is refused by name.")
completions.held(
    "token-id-strings", "`return_tokens_as_token_ids` writes tokens as \"token_id:5\".",
    V_IDS + "test_comparison_with_prompt_logprobs_and_logprobs",
    SAME + "test_tokens_by_their_ids")
completions.not_offered(
    "mixed", "Texts and token ids are mixed in one list, or in one prompt.",
    L_COMPLETION + "test_completion_with_tokens_input (mixed)",
    "OpenAI's API has one kind in a list; `/tokenize` makes ids of a text.")
completions.not_offered(
    "post-sampling", "Log-probabilities are those after temperature and cuts.",
    L_COMPLETION + "test_n_probs_post_sampling",
    "They are the model's own, as OpenAI's.")
completions.not_offered(
    "response-fields", "A request chooses the fields of its response.",
    L_COMPLETION + "test_completion_response_fields",
    "OpenAI's API doesn't have it.")
completions.not_offered(
    "unified", "Requests that don't fit in the cache together fail with 500.",
    L_COMPLETION + "test_completion_unified",
    "They are preempted and served later.")
completions.not_offered(
    "prompt-embeds", "A prompt may be embeddings.",
    V_PROMPT + "test_load_prompt_embeds",
    "A prompt is text or token ids.")

logprobs = Topic("http-logprobs", "HTTP: log-probabilities")
logprobs.held(
    "none", "Without `logprobs` there are none.",
    V_COMPLETION + "test_no_logprobs",
    SAME + "test_chunks_have_the_same_fields_with_and_without_the_short_cut")
logprobs.held(
    "zero", "`logprobs=0` gives those of the chosen tokens alone.",
    V_COMPLETION + "test_zero_logprobs",
    SAME + "test_the_chosen_token_has_a_logprob_when_it_is_not_among_the_likeliest")
logprobs.held(
    "some", "`logprobs=5` gives the five likeliest, and the chosen token if it is none of them.",
    V_COMPLETION + "test_some_logprobs",
    SAME + "test_logprobs_of_completions",
    SAME + "test_the_chosen_token_has_a_logprob_when_it_is_not_among_the_likeliest")
logprobs.held(
    "too-many", "More than the server's limit are refused with 400.",
    V_COMPLETION + "test_too_many_completion_logprobs",
    BAD + "test_what_is_refused")
logprobs.held(
    "chat", "`top_logprobs` of a chat are that many, with text and bytes.",
    V_CHAT + "test_some_logprobs_chat",
    SAME + "test_logprobs_of_chats")
logprobs.held(
    "chat-zero", "`top_logprobs=0` gives the chosen tokens and an empty list of others.",
    V_CHAT + "test_zero_logprobs_chat",
    SAME + "test_bytes_put_half_characters_together")
logprobs.held(
    "chat-too-many", "More `top_logprobs` than the limit are refused, also of a stream.",
    V_CHAT + "test_too_many_chat_logprobs",
    BAD + "test_what_is_refused")
logprobs.held(
    "join", "The texts of the tokens joined are the text of the answer.",
    L_CHAT + "test_logprobs",
    CLIENT + "test_several_choices_with_logprobs")
logprobs.held(
    "streamed", "Streamed log-probabilities are those of the response in one piece.",
    L_CHAT + "test_logprobs_stream",
    SAME + "test_logprobs_of_chats", CLIENT + "test_several_choices_with_logprobs")
logprobs.held(
    "probs-streamed", "Each chunk of a completion has the log-probabilities of its own tokens.",
    L_COMPLETION + "test_n_probs_stream",
    SAME + "test_logprobs_of_completions")
logprobs.held(
    "prompt", "`prompt_logprobs` gives those of each token of the prompt.",
    V_COMPLETION + "test_prompt_logprobs_completion",
    SAME + "test_prompt_logprobs")
logprobs.held(
    "prompt-chat", "Of a chat, they are of the prompt as the template wrote it.",
    V_CHAT + "test_prompt_logprobs_chat",
    SAME + "test_prompt_logprobs")
logprobs.not_offered(
    "prompt-temperature", "Those of a prompt may be taken at a temperature.",
    V_COMPLETION + "test_prompt_logprobs_temperature_increases_argmax_prob_completion",
    "They are the model's own.")

usage = Topic("http-usage", "HTTP: usage")
usage.held(
    "include", "`include_usage` adds one chunk with `choices: []` at the end; the other chunks have none.",
    V_CHAT + "test_chat_completion_stream_options",
    CLIENT + "test_a_chat_streams_its_role_first_its_reason_last_and_then_its_usage")
usage.held(
    "continuous", "`continuous_usage_stats` adds the usage so far to each chunk.",
    V_COMPLETION + "test_completion_stream_options",
    CLIENT + "test_usage_in_every_chunk")
usage.held(
    "continuous-alone", "`continuous_usage_stats` without `include_usage` adds nothing.",
    V_COMPLETION + "test_completion_stream_options (include_usage false)",
    SAME + "test_continuous_usage_needs_include_usage")
usage.held(
    "no-stream", "`stream_options` without `stream` is refused with 400.",
    V_COMPLETION + "test_completion_stream_options (stream false)",
    BAD + "test_what_is_refused")
usage.held(
    "sum", "The total is the sum of prompt and completion.",
    HF_SERVE + "test_non_streaming_usage",
    SAME + "test_completions", CLIENT + "test_chat")
usage.not_offered(
    "unasked", "A stream ends with its usage without being asked.",
    HF_SERVE + "test_streaming_usage",
    "As in OpenAI's API, a client asks with `include_usage`.")
usage.not_offered(
    "timings", "Each chunk has timings.",
    L_CHAT + "test_chat_completion_with_timings_per_token",
    "Times are in `/metrics`.")
usage.not_offered(
    "progress", "A stream says how much of the prompt is computed.",
    L_CHAT + "test_return_progress",
    "Nothing is sent before the first token, so that errors have a status.")

chat = Topic("http-chat", "HTTP: chats")
chat.held(
    "single", "A chat's answer is a message of the assistant, with finish reason and usage.",
    V_CHAT + "test_single_chat_session",
    CLIENT + "test_chat")
chat.held(
    "turns", "Earlier turns are part of the prompt.",
    HF_SERVE + "test_llm_multi_turn_conversation",
    SAME + "test_chat", TEMPLATES + "test_what_a_request_says_about_the_template")
chat.held(
    "stream", "A stream of a chat begins with the role, and its texts joined are the answer in one piece.",
    V_CHAT + "test_chat_streaming",
    CLIENT + "test_a_chat_streams_its_role_first_its_reason_last_and_then_its_usage")
chat.held(
    "same-id", "All chunks of a stream have the same id.",
    L_CHAT + "test_chat_completion_stream",
    CLIENT + "test_a_chat_streams_its_role_first_its_reason_last_and_then_its_usage")
chat.held(
    "n", "A chat has `n` answers.",
    V_CHAT + "test_chat_completion_n_parameter_non_streaming",
    CLIENT + "test_several_choices_with_logprobs")
chat.held(
    "n-streamed", "`n` answers are streamed together.",
    V_CHAT + "test_chat_completion_n_parameter_streaming",
    CLIENT + "test_several_choices_with_logprobs")
chat.held(
    "n-limit", "An astronomically large `n` is refused.",
    V_CHAT + "test_chat_completion_request_n_parameter_massive_value",
    BAD + "test_what_is_refused")
chat.held(
    "parts", "A message may be a list of texts.",
    V_CHAT + "test_complex_message_content",
    TEMPLATES + "test_what_a_request_says_about_the_template")
chat.held(
    "template", "A server's chat template replaces the tokenizer's.",
    L_CHAT + "test_chat_template",
    TEMPLATES + "test_the_servers_template_comes_before_the_tokenizers")
chat.held(
    "continue", "An answer may continue the last message, without the end of its turn.",
    L_CHAT + "test_chat_template_assistant_prefill",
    TEMPLATES + "test_what_a_request_says_about_the_template")
chat.held(
    "structured-choice", "`structured_outputs` bind the text to a choice, a regular expression or a JSON schema.",
    V_CHAT + "test_structured_outputs_choice_chat",
    SAME + "test_structured_outputs")
chat.held(
    "json-object", "`response_format` json_object gives a JSON object.",
    V_CHAT + "test_response_format_json_object",
    SAME + "test_response_formats")
chat.held(
    "json-schema", "`response_format` json_schema gives JSON that fits the schema.",
    V_CHAT + "test_response_format_json_schema",
    SAME + "test_response_formats")
chat.held(
    "text-format", "`response_format` text changes nothing.",
    V_CHAT + "test_response_format_text",
    SAME + "test_response_formats")
chat.held(
    "unknown-format", "An unknown `response_format` is refused with 400.",
    L_CHAT + "test_completion_with_response_format",
    BAD + "test_what_is_refused")
chat.not_offered(
    "extra-fields", "A message may have any fields.",
    V_CHAT + "test_extra_fields_allowed",
    "A field that isn't known is refused by name: it may be a misspelled one.")
chat.not_offered(
    "custom-role", "A message may have any role.",
    V_CHAT + "test_custom_role",
    "Roles are OpenAI's without tools: system, developer, user, assistant.")
chat.not_offered(
    "invocations", "`/invocations` is another name of the API.",
    V_CHAT + "test_invocations",
    "It is SageMaker's; the API has one name.")
chat.not_offered(
    "tools", "A chat may call tools.",
    V_IDS + "test_chat_completion_with_tool_use", NO_TOOLS)
chat.not_offered(
    "tool-messages", "Fields of tool calls are forwarded to the template.",
    HF_SERVE + "test_llm_tool_use_fields_forwarded", NO_TOOLS)
chat.not_offered(
    "images", "A message may have images.",
    HF_SERVE + "test_chat_completion_with_image", TEXT_ONLY)
chat.not_offered(
    "audio", "A message may have audio.",
    HF_SERVE + "test_multimodal_base64_input_audio_converted_to_data_uri", TEXT_ONLY)
chat.not_offered(
    "local-files", "Images may be files of the server, within one folder.",
    L_SECURITY + "test_local_media_file", TEXT_ONLY)
chat.not_offered(
    "grammar-field", "`grammar` and `json_schema` are fields of the request.",
    L_CHAT + "test_completion_with_grammar",
    "vLLM's `structured_outputs` has both.")
chat.not_offered(
    "apply-template", "`/apply-template` returns the prompt of a chat.",
    L_CHAT + "test_apply_chat_template",
    "`/tokenize` takes messages and returns their tokens, and `/detokenize` their text.")
chat.not_offered(
    "responses-api", "`/v1/responses` streams typed events.",
    HF_SERVE + "test_streaming (responses)",
    "Chat completions are what all clients have in common.")

refusals = Topic("http-refusals", "HTTP: what is refused")
refusals.held(
    "no-object", "A body that isn't a JSON object is refused with 400, not 500.",
    V_BODY + "test_chat_completion_request_rejects_non_object_body",
    BAD + "test_bodies_that_are_no_json_object")
refusals.held(
    "cache-salt", "An empty `cache_salt` is refused.",
    V_BODY + "test_chat_completion_request_cache_salt_still_validated_on_dict",
    BAD + "test_what_is_refused")
refusals.held(
    "content-type", "A body of another content type is refused.",
    V_BASIC + "test_request_wrong_content_type",
    BAD + "test_a_body_of_another_type")
refusals.held(
    "empty-prompt", "An absent or empty prompt is refused.",
    V_PROMPT + "test_empty_prompt",
    BAD + "test_what_is_refused")
refusals.held(
    "vocabulary", "Token ids outside the vocabulary are refused.",
    V_PROMPT + "test_out_of_vocab_token_ids",
    BAD + "test_what_is_refused")
refusals.held(
    "negative", "Negative token ids are refused.",
    V_COMPLETION_ERROR + "test_negative_prompt_token_ids_flat",
    BAD + "test_what_is_refused")
refusals.held(
    "long-prompt", "A prompt beyond the context is refused with 400.",
    L_COMPLETION + "test_nocache_long_input_prompt",
    BAD + "test_what_is_refused")
refusals.held(
    "long-chat", "A chat beyond the context is refused with 400 and a code of its own, streamed or not.",
    L_CHAT + "test_context_size_exceeded_stream",
    BAD + "test_a_chat_beyond_the_context")
refusals.held(
    "bias-token", "A biased token outside the vocabulary is refused, and named with the vocabulary's size.",
    V_BIAS + "test_chat_logit_bias_invalid",
    BAD + "test_what_is_refused")
refusals.held(
    "bias-key", "A key of `logit_bias` that is no token id is refused.",
    V_BIAS + "test_chat_logit_bias_non_integer_key",
    BAD + "test_what_is_refused")
refusals.held(
    "seed", "A seed beyond 64 bits is refused.",
    V_CHAT + "test_long_seed",
    BAD + "test_what_is_refused")
refusals.held(
    "missing-schema", "`response_format` json_schema without a schema is refused with 400.",
    V_COMPLETION_ERROR + "test_json_schema_response_format_missing_schema",
    BAD + "test_what_is_refused")
refusals.held(
    "bad-grammar", "A schema, a regular expression or a grammar that can't be compiled is refused with 400.",
    V_COMPLETION + "test_invalid_grammar",
    BAD + "test_structured_outputs_that_can_t_be_compiled")
refusals.held(
    "structured-type", "`structured_outputs` of a wrong type is refused with 400.",
    V_CHAT + "test_structured_outputs_type_error",
    BAD + "test_structured_outputs_that_can_t_be_compiled")
refusals.held(
    "messages", "Messages that are no list, no objects, without role or with content of another type are refused.",
    L_CHAT + "test_invalid_chat_completion_req",
    BAD + "test_what_is_refused")
refusals.held(
    "no-key", "A wrong key gets 401.",
    L_SECURITY + "test_incorrect_api_key",
    CLIENT + "test_keys_and_a_full_server")
refusals.held(
    "right-key", "The right key is served.",
    L_SECURITY + "test_openai_library_correct_api_key",
    CLIENT + "test_keys_and_a_full_server")
refusals.not_offered(
    "all-bad-keys", "All wrong keys of `logit_bias` are named at once.",
    V_BIAS + "test_chat_logit_bias_multiple_non_integer_keys",
    "A message names the first fault.")
refusals.not_offered(
    "cors", "Pages of other sites may use the server.",
    L_SECURITY + "test_cors_options",
    "CORS is off: requests with a foreign Origin are refused.")
refusals.not_offered(
    "public-models", "The list of models needs no key.",
    L_SECURITY + "test_access_public_endpoint (models)",
    "Only health checks and the page do without a key.")

faults = Topic("http-faults", "HTTP: faults")
faults.held(
    "error", "A request that the engine fails is answered with 500.",
    V_COMPLETION_ERROR + "test_completion_error_non_stream",
    BAD + "test_an_error_of_the_model_has_a_status_before_the_first_token_and_an_event_after_it")
faults.held(
    "error-streamed", "A stream that has begun ends with an error event, then `[DONE]`.",
    V_COMPLETION_ERROR + "test_completion_error_stream",
    BAD + "test_an_error_of_the_model_has_a_status_before_the_first_token_and_an_event_after_it")
faults.held(
    "dead", "Once the engine is dead, requests get 503.",
    V_BASIC + "test_health_check_engine_dead_error",
    CLIENT + "test_a_draining_server_and_a_dead_engine_are_503")
faults.held(
    "cancel", "A request whose client has timed out is aborted, and others are served.",
    V_BASIC + "test_request_cancellation",
    CLIENT + "test_a_timeout_aborts_the_request", GONE + "test_a_client_that_leaves_while_tokens_are_computed")
faults.held(
    "cancel-stream", "A stream that is closed early is aborted.",
    HF_SERVE + "test_request_cancellation (completions)",
    CLIENT + "test_a_stream_that_is_closed_early_is_aborted")
faults.held(
    "cancel-slot", "What a client that has left was using is free again.",
    L_COMPLETION + "test_cancel_request",
    GONE + "test_a_client_that_leaves_while_tokens_are_computed")

around = Topic("http-around", "HTTP: models and tokens")
around.held(
    "models", "The list of models has the one that is served.",
    L_BASIC + "test_server_models",
    CLIENT + "test_models")
around.held(
    "tokenize", "`/tokenize` gives the tokens of a text, their count and the longest sequence.",
    V_TOKENIZE + "test_tokenize_completions",
    TEMPLATES + "test_tokenize_and_back")
around.held(
    "tokenize-chat", "`/tokenize` takes a chat as well.",
    V_TOKENIZE + "test_tokenize_chat",
    TEMPLATES + "test_tokenize_a_chat")
around.held(
    "detokenize", "`/detokenize` gives the text back.",
    L_TOKENIZE + "test_tokenize_detokenize",
    TEMPLATES + "test_tokenize_and_back")
around.held(
    "pieces", "The texts of the tokens are given if asked for.",
    L_TOKENIZE + "test_tokenize_with_pieces",
    TEMPLATES + "test_tokenize_and_back")
around.held(
    "version", "`/version` says which version runs.",
    V_BASIC + "test_show_version",
    CLIENT + "test_version_and_load")
around.held(
    "load", "`/load` says how many requests are in flight.",
    V_BASIC + "test_server_load",
    CLIENT + "test_version_and_load")
around.not_offered(
    "slots", "`/slots` says what each slot does.",
    L_BASIC + "test_server_slots", NO_SLOTS)
around.not_offered(
    "props", "`/props` gives default parameters.",
    L_BASIC + "test_server_props",
    "Defaults are OpenAI's, and in the OpenAPI document.")
around.not_offered(
    "aliases", "A model has several names.",
    L_BASIC + "test_server_model_aliases_and_tags", ONE_MODEL)
around.not_offered(
    "load-model", "`/load_model` loads another model.",
    HF_SERVE + "test_load_model_fresh", ONE_MODEL)

SERVING_TOPICS = [completions, logprobs, usage, chat, refusals, faults, around]
