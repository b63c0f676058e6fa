"""Calls of functions: how a model writes them, the grammar that holds them, and how they are found in its text.

A model has learned one format, which its chat template teaches; so the template tells which one it is. A model whose
template has no tools gets a message that teaches Hermes's.
"""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from lessons_lib.engine.structured_outputs import AS_PYTHON_WRITES_IT, StructuredOutputsParams
from lessons_lib.models.validate import BadRequest

Messages = list[dict[str, Any]]  # as chat templates read them
HEADER = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*"), "(?:arguments|parameters)": ')
TEACHING = """\
You can call functions. Each line describes one:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


@dataclass(frozen=True)
class CallFormat:
    """The form in which a model writes its calls.

    Attributes:
        sign: what only chat templates of such models contain.
        begin, end: the text around each call. Without them, an answer that begins with "{" is a call.
        arguments: the name of their field; the other one is "name".
        is_list: one list of all calls stands behind `begin`.
        begin_token: the id of `begin` if it is a special token, which no text can write.
    """

    sign: str
    begin: str = ""
    end: str = ""
    arguments: str = "arguments"
    is_list: bool = False
    begin_token: int | None = None

    @cached_property
    def opening(self) -> "re.Pattern[str]":
        """Finds where a call begins."""
        return re.compile(rf"\s*{re.escape(self.begin)}" if self.begin else r"\A\s*(?={)")

    @cached_property
    def unclear(self) -> "re.Pattern[str]":
        """Finds the end of a text that may be the start of a call."""
        part = ""
        for character in reversed(self.begin):
            part = f"(?:{re.escape(character)}{part})?"
        return re.compile(rf"\s*{part}\Z")


HERMES = CallFormat("<tool_call>", "<tool_call>", "</tool_call>")  # and Qwen's
MISTRAL = CallFormat("[TOOL_CALLS]", "[TOOL_CALLS]", is_list=True)
LLAMA = CallFormat('"parameters": dictionary of argument name', arguments="parameters")
FORMATS = (HERMES, MISTRAL, LLAMA)


@dataclass(frozen=True)
class Tools:
    """The functions that a request offers.

    Attributes:
        functions: name -> as OpenAI describes it: name, and perhaps description, parameters (a JSON schema), strict.
        choice: "none", "auto", "required", or the name of the one that must be called.
        several: an answer may have more than one call.
    """

    functions: dict[str, dict[str, Any]]
    choice: str = "auto"
    several: bool = True

    @property
    def for_template(self) -> Messages:
        """As chat templates read them: many take it that everything is there."""
        whole = {"name": "", "description": "", "parameters": {"type": "object", "properties": {}}}
        described = [{name: each.get(name, whole[name]) for name in whole} for each in self.functions.values()]
        return [{"type": "function", "function": each} for each in described]

    @property
    def is_forced(self) -> bool:
        """True if the answer is calls and nothing else."""
        return self.choice not in ("none", "auto")

    def rules(self, form: CallFormat, answer: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
        """The form of the text: calls if one must be made; calls or an answer if the answer has a form (`answer`), or a
        function is strict.

        Raises:
            BadRequest: a schema is beyond the limits, or the answer's form isn't JSON.
        """
        for each in self.functions.values():
            try:
                StructuredOutputsParams(json=each.get("parameters", {}))
            except BadRequest as error:
                raise BadRequest(str(error).replace("structured_outputs", "tools")) from error
        is_strict = any(each.get("strict") for each in self.functions.values())
        if self.choice == "none" or not (self.is_forced or answer or is_strict):
            return answer
        begin, end = json.dumps(form.begin), json.dumps(f"\n{form.end}")
        lead, text = f"lead[suffix={begin}]: /(?s:.*)/", f"/(?s:.*)/ & ~/(?s:.*){re.escape(form.begin)}(?s:.*)/"
        if form.begin_token is not None:
            begin = f"<[{form.begin_token}]>"
            lead, text = f"lead: TEXT {begin}", "/(?s:.*)/"
        elif not form.begin:
            lead, text = 'lead: ""', r"/([^\s{](?s:.*))?/"
        one = "call"
        if form.is_list:
            one = '"[" call (", " call)* "]"' if self.several else '"[" call "]"'
        elif form.begin:
            one = f'"\\n" call {end}'
        more = f'("\\n" {begin} {one})*' if form.end and self.several else ""
        lines = [f"start: {begin if form.begin else ''} {one} {more}"]
        if answer and not self.is_forced:
            lines = [f"{lines[0]} | answer", f"answer: {_json(schema_of(answer))}"]
        elif not self.is_forced:
            lines = [f"start: lead {one} {more} | TEXT", lead, f"TEXT: {text}"]
        names = [self.choice] if self.choice in self.functions else [*self.functions]
        lines.append("call: " + " | ".join(f"call{index}" for index in range(len(names))))
        for index, name in enumerate(names):
            start = json.dumps(f'{{"name": "{name}", "{form.arguments}": ')
            schema = self.functions[name].get("parameters", {"additionalProperties": False})
            lines += [f'call{index}: {start} arguments{index} "}}"', f"arguments{index}: {_json(schema)}"]
        return StructuredOutputsParams(grammar="\n".join(lines))


def schema_of(answer: StructuredOutputsParams) -> Any:
    """The JSON schema of an answer's form."""
    if answer.json is None and answer.json_object is None:
        raise BadRequest("structured_outputs is given beside tools; there, it can only be json, or leave out tools.")
    return json.loads(answer.json) if isinstance(answer.json, str) else answer.json or {}


def _json(schema: dict[str, Any]) -> str:
    """A grammar's rule for an object."""
    return f"%json {json.dumps({'type': 'object'} | schema | {'x-guidance': AS_PYTHON_WRITES_IT})}"


class Piece(NamedTuple):
    """A part of an answer.

    Attributes:
        text: of the answer, or of a call's arguments.
        call: the call that it belongs to, counted from 0; None for the answer's text.
        name: of the function: in the first piece of a call, which has no text.
    """

    text: str
    call: int | None = None
    name: str | None = None


@dataclass
class CallReader:
    """Finds the calls in an answer while it is written.

    Where calls are forced, a grammar holds them, and their arguments are told as they come. Otherwise, a call is told
    when all of it is there: one that is malformed, or of a function that isn't offered, stays text.

    Attributes:
        held: text that may belong to a call, or, if calls are forced, all of it.
        num_calls: found so far.
    """

    tools: Tools
    form: CallFormat
    held: str = ""
    num_calls: int = 0
    _has_text: bool = False
    _start: int | None = None  # where in `held` the arguments begin that are being told
    _told: int = 0  # where in `held` the rest begins

    def read(self, text: str, is_last: bool = False) -> Iterator[Piece]:
        """The pieces that more of the text adds."""
        self.held += text
        if self.tools.is_forced:
            yield from self._read_forced()
        elif self.tools.several or not self.num_calls:
            yield from self._read_free(is_last)

    def _read_forced(self) -> Iterator[Piece]:
        while True:
            if self._start is None:
                if (found := HEADER.search(self.held, self._told)) is None:
                    return
                self._start = self._told = found.end()
                yield self._call(json.loads(found[1]))
            try:
                stop, is_whole = _decoder.raw_decode(self.held, self._start)[1], True
            except ValueError:
                stop, is_whole = len(self.held), False
            if stop > self._told:
                yield Piece(self.held[self._told : stop], self.num_calls - 1)
                self._told = stop
            if not is_whole:
                return
            self._start = None

    def _read_free(self, is_last: bool) -> Iterator[Piece]:
        form = self.form
        while found := self._search(form.opening):
            has_end = bool(form.end) and form.end in self.held[found.end() :]
            calls, stop = self._calls(found.end(), is_last) if has_end or is_last else (None, 0)
            if calls is None and not is_last:
                yield from self._tell(found.start())
                return
            if not calls:
                yield from self._tell(found.end() or len(self.held))
                continue
            yield from self._tell(found.start())
            for name, arguments in calls if self.tools.several else calls[:1]:
                yield self._call(name)
                yield Piece(json.dumps(arguments, ensure_ascii=False), self.num_calls - 1)
            self.held = self.held[stop - found.start() :] if self.tools.several else ""
        unclear = None if is_last else self._search(form.unclear)
        if not (is_last and self.num_calls and self.held.isspace()):
            yield from self._tell(unclear.start() if unclear else len(self.held))

    def _search(self, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        """Search what is held for a call. Without marks, nothing stands in front of it."""
        is_over = not self.form.begin and (self._has_text or self.num_calls)
        return None if is_over else pattern.search(self.held)

    def _calls(self, start: int, is_last: bool) -> tuple[list[tuple[str, dict[str, Any]]] | None, int]:
        """(name and arguments of the calls whose JSON is there, where they end); None if it isn't complete."""
        end, text = self.form.end, self.held[start:].lstrip()
        try:
            value, stop = _decoder.raw_decode(text)
        except json.JSONDecodeError as error:  # the end that was seen may be a part of an argument
            return (None if "Unterminated string" in error.msg or end not in text[error.pos :] else []), 0
        except RecursionError:
            return [], 0
        rest = text[stop:].lstrip()
        if not is_last and rest != end and end.startswith(rest):
            return None, 0
        values = value if self.form.is_list and isinstance(value, list) else [value]
        if not (rest.startswith(end) if end and rest else not rest) or not all(map(self._is_call, values)):
            return [], 0
        return [(each["name"], each[self.form.arguments]) for each in values], len(self.held) - len(rest[len(end) :])

    def _is_call(self, value: Any) -> bool:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return False
        return value["name"] in self.tools.functions and isinstance(value.get(self.form.arguments), dict)

    def _call(self, name: str) -> Piece:
        self.num_calls += 1
        return Piece("", self.num_calls - 1, name)

    def _tell(self, count: int) -> Iterator[Piece]:
        text, self.held = self.held[:count], self.held[count:]
        if text:
            self._has_text = True
            yield Piece(text)


_decoder = json.JSONDecoder()


def new_call_id() -> str:
    """Nine letters and digits: Mistral's templates accept no other."""
    return uuid.uuid4().hex[:9]


def taught(messages: Messages, tools: Messages) -> Messages:
    """A chat for a template that knows no tools: tools, calls and results are text, in the words of Hermes."""
    plain: Messages = []
    if tools:
        plain.append({"role": "system", "content": TEACHING.format(tools="\n".join(map(json.dumps, tools)))})
    for message in messages:
        role, texts = message["role"], [message["content"]] if message["content"] else []
        for call in message.get("tool_calls", ()):
            texts.append(f"{HERMES.begin}\n{json.dumps(call['function'], ensure_ascii=False)}\n{HERMES.end}")
        if role == "tool":
            role, texts = "user", [f"<tool_response>\n{message['content']}\n</tool_response>"]
        text = "\n".join(texts)
        if plain and (role == plain[-1]["role"] == "system" or message["role"] == plain[-1].get("from") == "tool"):
            plain[-1]["content"] += f"\n{text}"
        else:
            plain.append(message | {"role": role, "content": text, "from": message["role"]})
    return [{name: each[name] for name in ("role", "content", "name") if name in each} for each in plain]
