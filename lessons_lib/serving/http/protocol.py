"""The fields of requests: those of OpenAI's API that make sense here, and vLLM's for the rest of SamplingParams.

Values are checked for types and ranges, and an unknown field is refused: silently ignoring a misspelled `max_token` is
the worst of all answers.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from lessons_lib.engine.input_processor import MAX_NAME_CHARACTERS, MAX_TIER
from lessons_lib.engine.sampling_params import (
    MAX_BIAS,
    MAX_N,
    MAX_PENALTY,
    MAX_STOP_CHARACTERS,
    MAX_VALUES,
    SamplingParams,
)
from lessons_lib.engine.structured_outputs import MAX_CHOICES, StructuredOutputsParams
from lessons_lib.models.validate import BadRequest, shortened
from lessons_lib.serving.http import errors
from lessons_lib.serving.http.tools import Tools

MAX_PROMPTS = MAX_COMPLETIONS = 1024  # of one request
MAX_MESSAGES, MAX_METADATA, MAX_TOOLS = 2048, 16, 128  # as in OpenAI's API
MAX_FIELD_CHARACTERS = 100  # of a field's name that isn't known, in an error

TokenId = Annotated[int, Field(ge=0)]
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,19}$")]  # a key of a JSON object is a string
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


def asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    """True for null and for neutral values."""
    # To Python, 1 and 1.0 and True are equal.
    is_bool = isinstance(value, bool)
    return value is None or any(value == each and isinstance(each, bool) == is_bool for each in neutral)


def one_of(wanted: str, tag_of: Callable[[Any], str | None]) -> Discriminator:
    """Choose the branch of a union by the tag of a value, or None, so that errors are about the branch that was
    meant."""
    return Discriminator(tag_of, custom_error_type="union", custom_error_message=f"Input should be {wanted}")


def text_or_other(other: str, kind: type) -> Callable[[Any], str | None]:
    """For unions of a text and something else, which is a list or a dict."""
    return lambda value: TEXT if isinstance(value, str) else other if isinstance(value, kind) else None


# Tags of branches: pydantic names them in the places of errors, beside names of fields.
TEXT, TEXTS, TOKENS, LISTS_OF_TOKENS, PARTS, OBJECT = errors.TAGS


def fail_fast(schema: Any) -> Any:
    """Let validation stop at the first wrong item of a list or dict: building 100,000 errors takes seconds."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema["fail_fast"] = True
        for each in schema.values():
            fail_fast(each)
    elif isinstance(schema, list | tuple):
        for each in schema:
            fail_fast(each)
    return schema


@cache
def known_fields(kind: "type[Fields]") -> frozenset[str]:
    """The names that a request may have."""
    return frozenset(each.alias or name for name, each in kind.model_fields.items())


class Fields(BaseModel):
    """Strict: a number in quotes is no number, and a field that doesn't exist is an error. `not_offered` is like
    NOT_OFFERED."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    not_offered: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def refuse_what_is_not_offered(cls, data: Any) -> Any:
        """Of fields that don't exist, one is kept: an error is about one, so 100,000 needn't be looked at."""
        if not isinstance(data, dict) or data.keys() <= (fields := known_fields(cls)):
            return data
        for name, (why, *neutral) in cls.not_offered.items():
            if name in data and not asks_for_nothing(data[name], tuple(neutral)):
                raise PydanticCustomError("not_offered", "{field} isn't offered: {why}", {"field": name, "why": why})
        known = {name: data[name] for name in fields if name in data}
        for name in data:
            if name not in fields and name not in cls.not_offered:
                return known | {name[:MAX_FIELD_CHARACTERS]: data[name]}
        return known

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return fail_fast(handler(source))


class CacheControl(Fields):
    """Keep the prompt in host memory for a time, as Anthropic writes it: "90s", "5m" or "1h"; "0s" ends it."""

    type: Literal["ephemeral"]
    ttl: Annotated[str, Field(pattern="^[0-9]{1,4}[smh]$")] = "5m"

    @property
    def seconds(self) -> int:
        return int(self.ttl[:-1]) * {"s": 1, "m": 60, "h": 3600}[self.ttl[-1]]


class StreamOptions(Fields):
    """More that a stream tells."""

    include_usage: bool | None = None  # in one more chunk at the end
    continuous_usage_stats: bool | None = None  # so far, in every chunk
    include_obfuscation: bool | None = None  # OpenAI's; what it would add hides lengths from eavesdroppers


class StructuredOutputs(Fields):
    """Rules for the text; see StructuredOutputsParams. Exactly one is given."""

    json_schema: (
        Annotated[
            Annotated[str, Tag(TEXT)] | Annotated[dict[str, Any], Tag(OBJECT)],
            one_of("a JSON schema: an object, or its text", text_or_other(OBJECT, dict)),
        ]
        | None
    ) = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[StopString], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None

    def to_params(self) -> StructuredOutputsParams:
        choice = None if self.choice is None else tuple(self.choice)
        return StructuredOutputsParams(
            json=self.json_schema, regex=self.regex, choice=choice, grammar=self.grammar, json_object=self.json_object
        )


class JSONSchemaFormat(Fields):
    """OpenAI's form of a schema. `name`, `description` and `strict` change nothing: every schema is kept strictly."""

    name: str
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Fields):
    """OpenAI's rules for the text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None

    def to_params(self) -> StructuredOutputsParams | None:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise BadRequest('response_format must have a json_schema exactly if its type is "json_schema".')
        return form_of(self.type, self.json_schema.json_schema if self.json_schema else None)


def form_of(kind: str, schema: dict[str, Any] | None) -> StructuredOutputsParams | None:
    """A text of OpenAI's type "text", "json_object" or "json_schema"."""
    if kind == "text":
        return None
    return StructuredOutputsParams(json_object=True) if schema is None else StructuredOutputsParams(json=schema)


GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
# Field -> why it is refused, and values with which it asks for nothing, besides null. Clients fill in all they know.
NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "use_beam_search": ("completions are drawn, not searched; ask for n.", False),
    "length_penalty": ("it belongs to beam search.", 1),
    "early_stopping": ("it belongs to beam search.", False),
    "truncate_prompt_tokens": ("a shortened prompt is another prompt; shorten it before you send it.",),
    "logits_processors": ("functions can't be sent; see logit_bias and structured_outputs.", []),
    **dict.fromkeys(GUIDED, ("use structured_outputs, as in vLLM from 0.12 on.",)),
    "best_of": ("ask for n.", 1),
    "typical_p": ("use min_p or top_p.", 1),
    "kv_transfer_params": ("KV caches stay in one engine.", {}),
    "prompt_cache_retention": ("a prompt is cached until others need the room.", "in_memory", "in-memory"),
    "moderation": ("nothing is moderated.",),
}


class SamplingFields(Fields):
    """Fields that all requests have. Names and meanings are OpenAI's, and below `top_k` vLLM's.

    None stands for the default: OpenAI's temperature of 1, and the engine's defaults for all others.
    """

    form_field: ClassVar[str]  # OpenAI's field for the form of the text

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Int64 | None = None
    stop: (
        Annotated[
            Annotated[StopString, Tag(TEXT)]
            | Annotated[list[StopString], Field(max_length=MAX_VALUES["stop"]), Tag(TEXTS)],
            one_of("a valid string, or a list of strings", text_or_other(TEXTS, list)),
        ]
        | None
    ) = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenIdText, Bias], Field(max_length=MAX_VALUES["logit_bias"])] | None = None
    # They change nothing here, and clients send them.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_options: dict[str, str] | None = None

    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-5, le=1e5)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_VALUES["stop_token_ids"])] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    bad_words: Annotated[list[StopString], Field(max_length=MAX_VALUES["bad_words"])] | None = None
    allowed_token_ids: TokenIds | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)] | None = None
    cache_control: CacheControl | None = None  # this server's own, for the whole prompt
    priority: Annotated[int, Field(ge=0, le=MAX_TIER)] | None = None

    def sampling_params(self, max_tokens: int | None, logprobs: int | None, **own: Any) -> SamplingParams:
        """As the engine takes them.

        Raises:
            BadRequest: values don't fit together.
        """
        given = {name: value for name in ENGINE_FIELDS if (value := getattr(self, name, None)) is not None}
        fields = {"temperature": 1.0, "structured_outputs": self.text_rules()} | given | own
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **fields)

    def form(self) -> StructuredOutputsParams | None:
        """The form of the text that `form_field` asks for."""
        raise NotImplementedError

    def text_rules(self) -> StructuredOutputsParams | None:
        """The form that the text must have. Raises BadRequest."""
        rules = self.form()
        if self.structured_outputs and rules:
            raise BadRequest(f"structured_outputs and {self.form_field} are given; give one of them.")
        return self.structured_outputs.to_params() if self.structured_outputs else rules


class CompletionFields(SamplingFields):
    """More fields of both kinds of completion."""

    form_field: ClassVar[str] = "response_format"

    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    response_format: ResponseFormat | None = None
    prompt_logprobs: Annotated[int, Field(ge=-1)] | None = None
    return_token_ids: bool | None = None
    # This server's own: tokens that another replica has computed. The stream goes on behind them; a balancer needs it.
    output_token_ids: list[TokenId] | None = None

    def sampling_params(self, max_tokens: int | None, logprobs: int | None, **own: Any) -> SamplingParams:
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options is given, and stream is not true; leave it out, or set stream.")
        if self.stream and self.prompt_logprobs is not None:
            raise BadRequest("prompt_logprobs is given, and stream is true; they come only in a response at once.")
        if self.output_token_ids and (not self.stream or getattr(self, "echo", None)):
            raise BadRequest("output_token_ids is given; only a stream without echo can go on behind tokens.")
        return super().sampling_params(max_tokens, logprobs, **own)

    def form(self) -> StructuredOutputsParams | None:
        return self.response_format.to_params() if self.response_format else None


# Fields that SamplingParams has by the same name and meaning.
ENGINE_FIELDS = CompletionFields.model_fields.keys() & {each.name for each in fields(SamplingParams)}
ENGINE_FIELDS.remove("structured_outputs")


def kind_of_prompt(value: Any) -> str | None:
    """A list is what its first item is."""
    if isinstance(value, str):
        return TEXT
    if not isinstance(value, list):
        return None
    first = value[0] if value else 0
    return TEXTS if isinstance(first, str) else LISTS_OF_TOKENS if isinstance(first, list) else TOKENS


class CompletionRequest(CompletionFields):
    """`POST /v1/completions`.

    Attributes:
        prompt: a text or token ids, or a list of one kind: one prompt each.
        max_tokens: 16 if not given, or what fits. 0 with `echo`: nothing but the prompt, with its log-probabilities.
        logprobs: how many of the likeliest tokens have log-probabilities, besides the chosen ones.
        echo: put the prompt in front of the text.
    """

    not_offered: ClassVar[dict[str, tuple[Any, ...]]] = NOT_OFFERED | {
        "suffix": ("this model writes on, and can't fill in; put all of the text into prompt.", ""),
        "prompt_embeds": ("send text or token ids.",),
    }

    prompt: Annotated[
        Annotated[str, Tag(TEXT)]
        | Annotated[TokenIds, Tag(TOKENS)]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS), Tag(TEXTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS), Tag(LISTS_OF_TOKENS)],
        one_of("a valid string, token ids, or a list of strings or of lists of token ids", kind_of_prompt),
    ]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=-1)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    def prompts(self) -> list[str | list[int]]:
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else self.prompt  # type: ignore[list-item, return-value]


class Function(Fields):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Fields):
    """A function, as chats describe it."""

    type: Literal["function"]
    function: Function


class FunctionByName(Fields):
    """The function that must be called."""

    name: FunctionName


class ChatToolChoice(Fields):
    """The same, as chats name it."""

    type: Literal["function"]
    function: FunctionByName


class ToolFields(SamplingFields):
    """Fields of requests whose answers may call functions."""

    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    def offered(self) -> Tools | None:
        """The functions, and what the request says about calls; None if it offers none. Raises BadRequest."""
        functions, choice = [inner(each) for each in self.tools or ()], self.tool_choice
        choice = choice if isinstance(choice, str | None) else inner(choice).name
        if not functions:
            if choice not in (None, "none"):
                raise BadRequest(f"tool_choice is {choice!r}, and there are no tools; leave it out.")
            return None
        by_name = {each.name: each.model_dump(include=FUNCTION_FIELDS, exclude_none=True) for each in functions}
        if len(by_name) < len(functions) or by_name.keys() & {*CHOICES}:
            raise BadRequest(f"tools must have names that differ, also from {', '.join(CHOICES)}; rename one.")
        for name, each in by_name.items():
            if each.get("parameters", {}).get("type", "object") != "object":
                raise BadRequest(f"tools has parameters of {name} whose type isn't 'object'; put them into an object.")
        if choice not in (None, *CHOICES, *by_name):
            raise BadRequest(f"tool_choice is {choice!r}, which isn't one of the tools: {', '.join(by_name)}.")
        return Tools(by_name, choice or "auto", self.parallel_tool_calls is not False)


def inner(tool: Any) -> Any:
    """The function of a tool or a choice: chats write it as a field, responses as fields."""
    return getattr(tool, "function", tool)


CHOICES = ("none", "auto", "required")
FUNCTION_FIELDS = set(Function.model_fields)
ChoiceWord = Annotated[Literal["none", "auto", "required"], Tag(TEXT)]
WORD_OR_FUNCTION = one_of("'none', 'auto', 'required' or a function", text_or_other(OBJECT, dict))


class CalledFunction(Fields):
    """The function of a call. `arguments` is JSON; the openai client adds them parsed."""

    name: str
    arguments: str
    parsed_arguments: Any = None


class ChatToolCall(Fields):
    """A call in a message of the assistant. `index` is of streams, whose parts may have been put together."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class TextPart(Fields):
    """A part of a message."""

    type: Literal["text"]
    text: str
    cache_control: Any = None  # hints for caches: every prompt is cached here
    prompt_cache_breakpoint: Any = None


class ChatMessage(Fields):
    """One message of a chat: a text, calls of functions, or, with the role "tool", the result of a call. `name` is for
    templates that write it."""

    not_offered: ClassVar[dict[str, tuple[Any, ...]]] = {
        "annotations": ("nothing is looked up.", []),
        **dict.fromkeys(("reasoning_content", "reasoning"), ("this model doesn't reason; send it as content.",)),
        "function_call": ("use tool_calls.", "none"),
        "audio": ("this model reads text only.",),
        "refusal": ("this model has no refusals; send it as content.", ""),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[str, Tag(TEXT)] | Annotated[list[TextPart], Tag(PARTS)],
            one_of("a valid string, or a list of parts", text_or_other(PARTS, list)),
        ]
        | None
    ) = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    parsed: Any = None  # the openai client adds it to a message, which may be sent back
    cache_control: Any = None

    def to_template(self, name: str | None = None) -> dict[str, Any]:
        """As chat templates read it, with this name if it has none. `developer` is OpenAI's newer word for `system`,
        which templates know."""
        content = "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role}
        message |= {"content": content or "", "name": self.name or name, "tool_call_id": self.tool_call_id}
        if self.tool_calls:
            message["tool_calls"] = [
                each.model_dump(include={"id", "type"})
                | {"function": {"name": each.function.name, "arguments": json.loads(each.function.arguments)}}
                for each in self.tool_calls
            ]
        return {name: value for name, value in message.items() if value is not None}


def to_template(messages: list[ChatMessage], field: str = "messages") -> list[dict[str, Any]]:
    """Messages, which come from a request's `field`, as chat templates read them.

    Raises:
        BadRequest: one is empty, or a call and its result don't belong together.
    """
    waiting: dict[str, str] = {}  # call -> the name of its function, which some templates write with the result
    written = []
    for index, message in enumerate(messages):
        here, calls = f"{field}.{index}", message.tool_calls or []
        if message.content is None and not calls:
            raise BadRequest(f"{here}.content is missing.")
        if calls and message.role != "assistant":
            raise BadRequest(f"{here}.tool_calls is given; only the assistant calls functions.")
        for call in calls:
            if not is_object(call.function.arguments):
                raise BadRequest(
                    f"{here}.tool_calls has the arguments {shortened(call.function.arguments)}; they must be a JSON "
                    "object, as text."
                )
        if (message.role == "tool") != (message.tool_call_id not in (None, "")):
            raise BadRequest(f"{here}.tool_call_id must be given exactly if the role is 'tool'.")
        if message.role == "tool" and message.tool_call_id not in waiting:
            raise BadRequest(f"{here}.tool_call_id is {shortened(message.tool_call_id)}; no call before has it.")
        if message.role != "tool" and waiting:
            raise BadRequest(f"{here} comes before the result of the call {shortened(min(waiting))}; send that first.")
        written.append(message.to_template(waiting.pop(message.tool_call_id or "", None)))
        waiting |= {call.id: call.function.name for call in calls}
    if waiting:
        raise BadRequest(f"{field} has no result of the call {shortened(min(waiting))}.")
    return written


def is_object(text: str) -> bool:
    """True for the text of a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class ChatRequest(ToolFields, CompletionFields):
    """`POST /v1/chat/completions`.

    Attributes:
        add_generation_prompt: the template writes the beginning of the answer's message; true if not given.
        continue_final_message: the answer goes on with the last message instead.
        chat_template_kwargs: more variables of the template, such as `enable_thinking`.
        max_completion_tokens: what fits if not given. `max_tokens` is its older name.
        top_logprobs: how many of the likeliest tokens have log-probabilities, besides the chosen ones.
    """

    not_offered: ClassVar[dict[str, tuple[Any, ...]]] = NOT_OFFERED | {
        "functions": ("use tools.", []),
        "function_call": ("use tool_choice.", "none"),
        "audio": ("this model writes text only.",),
        "prediction": ("the server makes its own guesses.",),
        "reasoning_effort": ("this model doesn't reason before it answers.", "none"),
        "verbosity": ("say it in a message, or set max_completion_tokens.", "medium"),
        "web_search_options": ("nothing is looked up.",),
        "echo": ("the answer begins after the messages.", False),
        "chat_template": ("the template is the server's; send a prompt of your own to /v1/completions.",),
        "documents": ("put them into a message.", []),
        "mm_processor_kwargs": ("this model reads text only.", {}),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[ChoiceWord | Annotated[ChatToolChoice, Tag(OBJECT)], WORD_OR_FUNCTION] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1)] | None = None
    store: Literal[False] | None = None

    def template_options(self) -> dict[str, Any]:
        continues = bool(self.continue_final_message)
        adds = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        if continues and adds:
            raise BadRequest("add_generation_prompt and continue_final_message are both true; set one of them.")
        own = self.chat_template_kwargs
        return dict(add_generation_prompt=adds, continue_final_message=continues, chat_template_kwargs=own)


errors.FIELDS += sorted(CompletionRequest.model_fields.keys() | ChatRequest.model_fields.keys())
