"""Text that grows token by token: it adds up to the text that all tokens have together, and nothing of a stop string is
ever shown."""

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from lessons_lib.engine.detokenizer import HALF_A_CHARACTER, IncrementalDetokenizer, backend_of, decode_options, text_of
from lessons_lib.models.loading import load_model

tokenizer = load_model()[1]
PIECES = ["The old dog", " ran", "é", "e\u0301", "👩‍👩‍👧", "🐶", "漢字", "かな", "한국", "🏳️‍🌈", "ﷺ", "नमस्ते", "€"]
PIECES += ["\n\n", "  ", "a", "'s", " '", "\t", "\u200d", "<|endoftext|>"]
STOPS = ["dog", "og", "o", "d ", " ra", "🐶", "字", "\n", "\n\n", "The old dog ran", "zz", "aa"]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=8).map("".join)
few = settings(max_examples=60, deadline=None)


def stream_of(token_ids, stop=()):
    """(what each token showed, what was shown at the end, the stream)."""
    stream = IncrementalDetokenizer(tokenizer, stop)
    shown = []
    for token in token_ids:
        shown.append(stream.add(token))
        assert "".join(shown) == stream.text
    last = stream.finish()
    assert "".join(shown) + last == stream.text
    return shown, last, stream


def at_once(token_ids):
    return tokenizer.decode(token_ids, skip_special_tokens=True)


@st.composite
def cut_into_tokens(draw):
    """A text, cut at any places, its pieces made tokens one by one: few tokenizers would choose these, but models may
    write them."""
    text = draw(texts)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    return [token for start, end in itertools.pairwise(cuts) for token in tokenizer(text[start:end]).input_ids]


@few
@given(cut_into_tokens() | st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
def test_any_tokens_are_the_text_of_all_at_once(token_ids):
    """Random tokens hold pieces of characters that never become whole."""
    _, _, stream = stream_of(token_ids)
    assert stream.text == at_once(token_ids) and not stream.stopped


@few
@given(cut_into_tokens(), st.lists(st.sampled_from(STOPS), max_size=3).map(tuple))
@example(tokenizer("Tom had a small red boat. Mia ran.").input_ids, (" red boat. M",))
def test_a_stop_string_ends_the_text_before_its_first_place(token_ids, stop):
    shown, last, stream = stream_of(token_ids, stop)
    # Tokens come one by one, so it is the first token with which a stop string is complete that decides.
    whole = ""
    for end in range(len(token_ids) + 1):
        whole = at_once(token_ids[:end])
        if end < len(token_ids) and whole.endswith(HALF_A_CHARACTER):
            continue
        places = [whole.index(string) for string in stop if string in whole]
        if places:
            assert stream.stopped and stream.text == whole[: min(places)]
            return
    assert not stream.stopped and stream.text == whole


def a_tokenizer(model, decoder, **options):
    """A fast tokenizer with one special token, [END]."""
    backend = Tokenizer(model)
    backend.decoder = decoder
    backend.add_special_tokens(["[END]"])
    return TokenizersBackend(tokenizer_object=backend, eos_token="[END]", **options)


WORDS = ["un", "##happy", "##s", "do", "n", "'", "t", ".", ",", "!", "the", "##!", "漢", "##字"]
METASPACES = ["▁", "▁The", "▁old", "dog", "▁▁", "s", ".", *(f"<0x{byte:02X}>" for byte in "€🐶é".encode())]
llama = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
pieces = {word: index for index, word in enumerate(WORDS)}
OTHERS = {
    f"word pieces{' with spaces' * (not cleanup)}": a_tokenizer(
        models.WordPiece(pieces, unk_token="un"), decoders.WordPiece(cleanup=cleanup), clean_up_tokenization_spaces=True
    )
    for cleanup in (True, False)
} | {
    "metaspaces and bytes": a_tokenizer(
        models.BPE({word: index for index, word in enumerate(dict.fromkeys(METASPACES))}, [], byte_fallback=True), llama
    ),
    "metaspaces": a_tokenizer(
        models.WordLevel({word: index for index, word in enumerate(METASPACES[:7])}, unk_token="s"),
        decoders.Metaspace(),
    ),
    "bytes": tokenizer,
}
kinds = st.sampled_from(sorted(OTHERS))


@few
@given(kinds, st.data(), st.booleans(), st.booleans())
def test_what_streams_is_the_text_that_is_returned_at_the_end(kind, data, skip_special, spaces):
    """Whatever the tokenizer: some write a token's text differently when another one follows."""
    other = OTHERS[kind]
    token_ids = data.draw(st.lists(st.integers(0, len(other) - 1), max_size=10))
    options = decode_options(other, skip_special, spaces)
    stream = IncrementalDetokenizer(other, options=options)
    shown = [stream.add(token) for token in token_ids]
    shown.append(stream.finish())
    assert "".join(shown) == stream.text == text_of(other, token_ids, options)
    assert skip_special or stream.text.count("[END]") == token_ids.count(len(other) - 1) or kind == "bytes"


@few
@given(st.sampled_from(["word pieces", "word pieces with spaces"]), st.data())
@example("word pieces with spaces", None)
def test_word_pieces_stream_as_they_are_decoded_without_clean_up(kind, data):
    other = OTHERS[kind]
    token_ids = data.draw(st.lists(st.integers(0, len(WORDS) - 1), max_size=10)) if data else [3, 7, 4, 5, 6]
    assert text_of(other, token_ids, decode_options(other, True, True)) == other.decode(
        token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


@few
@given(cut_into_tokens(), st.lists(st.sampled_from(STOPS), max_size=3).map(tuple), st.integers(0, 6), st.booleans())
@example(tokenizer("The old dog ran").input_ids, ("old", "an"), 6, False)
@example(tokenizer("The old dog ran").input_ids, ("old", "an"), 3, True)
def test_stop_strings_behind_the_first_tokens_included_or_not(token_ids, stop, min_tokens, include_stop):
    stream = IncrementalDetokenizer(tokenizer, stop, min_tokens=min_tokens, include_stop=include_stop)
    shown, start = [], 0
    for count, token in enumerate(token_ids, start=1):
        if stream.stopped:
            break
        shown.append(stream.add(token))
        start = len(stream._decoded) if count <= min_tokens else start
    shown.append(stream.finish())
    ready = stream._decoded
    assert "".join(shown) == stream.text
    places = [(place, string) for string in stop if (place := ready.find(string, start)) >= 0]
    if not places:
        assert stream.text == at_once(token_ids) and stream.stop_string is None
        return
    place = min(place for place, _ in places)
    assert stream.stop_string == next(string for string in stop if (place, string) in places)
    assert stream.text == ready[: place + include_stop * len(stream.stop_string)]


def test_a_token_of_bytes_is_decoded_once_and_without_the_ones_before(monkeypatch):
    token_ids = tokenizer("The old dog ran 🐶 home.").input_ids
    stream, decoded = IncrementalDetokenizer(tokenizer), []
    decode = stream._decode
    monkeypatch.setattr(stream, "_decode", lambda start: decoded.append(stream._token_ids[start:]) or decode(start))
    shown = [stream.add(token) for token in token_ids]
    assert len(decoded) == len(token_ids) and "" in shown
    for index, text in enumerate(shown):
        held = next((count for count in range(index) if shown[index - 1 - count]), index)
        assert decoded[index] == token_ids[index - held : index + 1]


def test_the_backend_decodes_only_where_the_tokenizer_adds_nothing(monkeypatch):
    options = {"skip_special_tokens": True}
    assert backend_of(tokenizer, options) is tokenizer.backend_tokenizer
    assert backend_of(WORDS, options) is None
    cleans_up = OTHERS["word pieces with spaces"]
    assert backend_of(cleans_up, options) is None
    assert backend_of(cleans_up, decode_options(cleans_up, True, True)) is cleans_up.backend_tokenizer
    monkeypatch.setattr(tokenizer, "decode", lambda token_ids, **options: "x" * len(token_ids))
    assert backend_of(tokenizer, options) is None
    stream = IncrementalDetokenizer(tokenizer)
    assert [stream.add(token) for token in (5, 6, 7)] == ["x", "x", "x"]


def test_a_class_with_its_own_decode_keeps_it():
    class Shouting(TokenizersBackend):
        def _decode(self, token_ids, **options):
            return super()._decode(token_ids, **options).upper()

    shouting = Shouting(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|endoftext|>")
    stream = IncrementalDetokenizer(shouting)
    assert "".join(map(stream.add, tokenizer("The old dog").input_ids)) == "THE OLD DOG"
