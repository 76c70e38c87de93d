"""Imports the endpoints of the OpenAI-compatible API and the types of its bodies, each when it is first needed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palyra.gateway.http.openai.chat import ChatEndpoint
    from palyra.gateway.http.openai.embeddings import EmbeddingsEndpoint
    from palyra.gateway.http.openai.models import ModelsEndpoint
    from palyra.gateway.http.openai.responses import ResponsesEndpoint


def models_endpoint() -> "type[ModelsEndpoint]":
    from palyra.gateway.http.openai.models import ModelsEndpoint

    return ModelsEndpoint


def chat_endpoint() -> "type[ChatEndpoint]":
    from palyra.gateway.http.openai.chat import ChatEndpoint

    return ChatEndpoint


def responses_endpoint() -> "type[ResponsesEndpoint]":
    from palyra.gateway.http.openai.responses import ResponsesEndpoint

    return ResponsesEndpoint


def embeddings_endpoint() -> "type[EmbeddingsEndpoint]":
    from palyra.gateway.http.openai.embeddings import EmbeddingsEndpoint

    return EmbeddingsEndpoint


def model_list() -> type:
    from palyra.gateway.http.openai.models import ModelList

    return ModelList


def model_entry() -> type:
    from palyra.gateway.http.openai.models import ModelEntry

    return ModelEntry


def chat_request() -> type:
    from palyra.gateway.http.openai.chat_request import ChatRequest

    return ChatRequest


def chat_completion() -> type:
    from palyra.gateway.http.openai.chat_response import ChatCompletion

    return ChatCompletion


def response_request() -> type:
    from palyra.gateway.http.openai.responses_request import ResponseRequest

    return ResponseRequest


def response_body() -> type:
    from palyra.gateway.http.openai.responses_response import ResponseBody

    return ResponseBody


def embeddings_request() -> type:
    from palyra.gateway.http.openai.embeddings import EmbeddingsRequest

    return EmbeddingsRequest


def embeddings_response() -> type:
    from palyra.gateway.http.openai.embeddings import EmbeddingsResponse

    return EmbeddingsResponse


def error_response() -> type:
    from palyra.gateway.http.openai.errors import ErrorResponse

    return ErrorResponse
