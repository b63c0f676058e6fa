"""The fields of `POST /v1/responses`. Its messages become those of a chat, so all rules of chats hold here, too."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.http import errors
from lessons_lib.serving.http.protocol import (
    MAX_MESSAGES,
    MAX_TOOLS,
    NOT_OFFERED,
    OBJECT,
    PARTS,
    TEXT,
    WORD_OR_FUNCTION,
    CalledFunction,
    ChatMessage,
    ChatToolCall,
    ChoiceWord,
    Fields,
    Function,
    FunctionName,
    ToolFields,
    form_of,
    one_of,
    text_or_other,
)


class ResponsePart(Fields):
    """A part of a message or of a result. What a client sends back of an answer has annotations and log-probabilities,
    which are empty."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Any = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None


TextOrParts = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[ResponsePart], Tag(PARTS)],
    one_of("a valid string, or a list of parts", text_or_other(PARTS, list)),
]


class ResponseItem(Fields):
    """A message, a call of a function, or its result. `status`, `id` and `phase` are of answers that are sent back."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: TextOrParts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: TextOrParts | None = None
    id: str | None = None
    status: str | None = None
    phase: Any = None

    def to_message(self) -> ChatMessage:
        """Raises BadRequest: a field is missing, or belongs to another kind."""
        wanted = FIELDS_OF[self.type]
        for name in FIELDS_OF["message"] + FIELDS_OF["function_call"] + FIELDS_OF["function_call_output"]:
            if (name in wanted) != (getattr(self, name) is not None):
                problem = "is missing" if name in wanted else "isn't a field of it"
                raise BadRequest(f"input has a {self.type} whose {name} {problem}.")
        fields: dict[str, Any] = {"role": self.role, "content": text_of(self.content)}
        if self.type == "function_call":
            function = CalledFunction.model_construct(name=self.name, arguments=self.arguments)
            fields = {
                "role": "assistant",
                "tool_calls": [ChatToolCall.model_construct(id=self.call_id, function=function)],
            }
        elif self.type == "function_call_output":
            fields = {"role": "tool", "tool_call_id": self.call_id, "content": text_of(self.output)}
        return ChatMessage.model_construct(**fields)


FIELDS_OF = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}


def text_of(content: str | list[ResponsePart] | None) -> str:
    """The text of a message's parts."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


def messages_of(items: list[ResponseItem]) -> list[ChatMessage]:
    """Items as messages: what the assistant says and calls in a row is one."""
    messages: list[ChatMessage] = []
    for item in items:
        message = item.to_message()
        if messages and message.tool_calls and messages[-1].role == "assistant":
            calls = [*(messages[-1].tool_calls or ()), *message.tool_calls]
            messages[-1] = messages[-1].model_copy(update={"tool_calls": calls})
        else:
            messages.append(message)
    return messages


class ResponseTool(Function):
    """A function, as responses describe it."""

    type: Literal["function"]


class ResponseToolChoice(Fields):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class ResponseTextForm(Fields):
    """The rules for the text. `name`, `description` and `strict` change nothing: every schema is kept strictly."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseText(Fields):
    """The form of the answer."""

    form: ResponseTextForm | None = Field(None, alias="format")
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(ToolFields):
    """`POST /v1/responses`.

    Attributes:
        input: a message of the user, or the items of a conversation.
        instructions: of the system, for this response only.
        previous_response_id: the items of that response and its input come first.
        store: the response is kept for a while; true if not given.
        max_output_tokens: what fits if not given.
    """

    form_field: ClassVar[str] = "text"
    output_token_ids: ClassVar[None] = None  # no other server has its conversations
    not_offered: ClassVar[dict[str, tuple[Any, ...]]] = NOT_OFFERED | {
        "background": ("the answer is made while you wait.", False),
        "background_options": ("the answer is made while you wait.", {}),
        "conversation": ("send previous_response_id, or all items as input.",),
        "context_management": ("nothing is left out of a conversation; send less.", []),
        "access_programs": ("there are none.", {}),
        "image": ("this model reads text only.", {}),
        "include": ("there is no more to tell.", [], ["reasoning.encrypted_content"]),
        "max_tool_calls": ("no tool runs in this server.",),
        "prompt": ("no prompts are kept; send the text as input.",),
        "reasoning": ("this model doesn't reason before it answers.", {}, {"effort": None}, {"effort": "none"}),
        "stream_options": ("a stream always ends with its usage.", {}, {"include_obfuscation": False}),
        "top_logprobs": ("ask /v1/chat/completions for log-probabilities.", 0),
    }

    input: Annotated[
        Annotated[str, Tag(TEXT)]
        | Annotated[list[ResponseItem], Field(min_length=1, max_length=MAX_MESSAGES), Tag(PARTS)],
        one_of("a valid string, or a list of items", text_or_other(PARTS, list)),
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: ResponseText | None = None
    truncation: Literal["disabled"] | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[ChoiceWord | Annotated[ResponseToolChoice, Tag(OBJECT)], WORD_OR_FUNCTION] | None = None

    def items(self) -> list[ResponseItem]:
        return [ResponseItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    def form(self) -> StructuredOutputsParams | None:
        form = self.text and self.text.form
        if not form:
            return None
        if (form.type == "json_schema") != (form.json_schema is not None):
            raise BadRequest('text.format must have a schema exactly if its type is "json_schema".')
        return form_of(form.type, form.json_schema)


errors.FIELDS += sorted(ResponsesRequest.model_fields.keys() - {*errors.FIELDS})
