"""`POST /tokenize` and `POST /detokenize`, as vLLM has them: what a prompt looks like to the model."""

import asyncio
from typing import Any

from fastapi import APIRouter

from lessons_lib.serving.http.generation import check_model
from lessons_lib.serving.http.protocol import AnyTokenizeRequest, DetokenizeRequest, TokenizeRequest
from lessons_lib.serving.http.served_model import ServedModel


def router(served: ServedModel) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["tokenization"])

    @routes.post("/tokenize")
    async def tokenize(body: AnyTokenizeRequest) -> dict[str, Any]:
        """The tokens of a prompt, or of a chat."""
        check_model(body.model, served)
        if isinstance(body, TokenizeRequest):
            tokens = await served.encode(body.prompt, body.add_special_tokens is not False)
        else:
            messages = [message.to_template() for message in body.messages]
            tokens = await served.encode_chat(messages, **body.template_options())
        return {
            "count": len(tokens),
            "max_model_len": served.max_model_len,
            "tokens": tokens,
            "token_strs": [served.token_text[token] for token in tokens] if body.return_token_strs else None,
        }

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        """The text of tokens."""
        check_model(body.model, served)
        served.check_tokens("tokens", body.tokens)
        return {"prompt": await asyncio.to_thread(served.decode, body.tokens)}

    return routes
