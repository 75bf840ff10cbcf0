"""What vendors' errors mean: the classes of their wordings, each with the public thread it comes from."""

import time
from typing import Any

import msgspec
import pytest

from luxx.errors import (
    ContentRefused,
    ContextTooLong,
    KeyRefused,
    OutOfCredit,
    Overloaded,
    ProviderError,
    ProviderFailed,
    ProviderRefused,
    QuotaExceeded,
    RateLimited,
)
from luxx.providers.failures import (
    as_provider_error,
    read_error,
    read_error_body,
    redact,
    retry_after_seconds,
    with_wait,
)

TOO_LONG = [
    # anthropics/claude-code#11281, #408, stackblitz/bolt.new#1748
    (400, "invalid_request_error", "prompt is too long: 201130 tokens > 200000 maximum"),
    (
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease input "
        "length or "
        "`max_tokens` and try again",
    ),
    # chatbot-ui#820, openai: anomalyco/opencode#6071
    (
        400,
        "context_length_exceeded",
        "This model's maximum context length is 8192 tokens. However, you requested 8554 tokens (7554 in the "
        "messages, 1000 in the completion). Please reduce the length of the messages or completion.",
    ),
    (None, "context_length_exceeded", "Your input exceeds the context window of this model."),
    # vanna-ai/vanna-flask#11
    (
        429,
        "rate_limit_exceeded",
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389. The input "
        "or output "
        "tokens must be reduced in order to run successfully.",
    ),
    # refly-ai/refly#1177
    (
        400,
        "",
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 "
        "tokens (42832 "
        'of text input). Please reduce the length of either one, or use the "middle-out" transform.',
    ),
    # cline/cline#3120
    (400, "", "This model's maximum prompt length is 131072 but the request contains 136973 tokens."),
    # MiniMax-AI/MiniMax-M2#119
    (400, "2013", "invalid params, context window exceeds limit (2013)"),
    # MoonshotAI/kimi-cli#2011
    (
        400,
        "invalid_request_error",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
    ),
    # microsoft/copilot-intellij-feedback#94, microsoft/vscode-copilot-release#6700
    (400, "model_max_prompt_tokens_exceeded", "prompt token count of 138898 exceeds the limit of 64000"),
    (400, "", "prompt token count of 65446 exceeds the limit of 64000"),
    # google-gemini/gemini-cli#6678
    (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
    ),
    # aws-samples/bedrock-chat#95
    (400, "ValidationException", "Input is too long for requested model."),
    # zeroclaw-labs/zeroclaw#4124
    (400, "1261", "Prompt exceeds max length"),
    # QwenLM/qwen-code#98
    (400, "", "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]"),
    # lmstudio-ai/lmstudio-bug-tracker#546, #2205, anomalyco/opencode#11141
    (
        400,
        "",
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is "
        "loaded with "
        "context length of only 32768 tokens, which is not enough.",
    ),
    (
        None,
        "",
        "The number of tokens to keep from the initial prompt is greater than the context length. Try "
        "to load the "
        "model with a larger context length, or provide a shorter input",
    ),
    (400, "", "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"),
    # ggml-org/llama.cpp#15780
    (
        500,
        "exceed_context_size_error",
        "the request exceeds the available context size. try increasing the context size or enable "
        "context shift",
    ),
    # abetlen/llama-cpp-python#416
    (500, "", "Requested tokens (2285) exceed context window of 2048"),
    # langchain-ai/deepagents#468
    (500, "", "The decoder prompt (length 66501) is longer than the maximum model length of 65536."),
    # AIDotNet/OpenCowork#82
    (
        400,
        "BadRequestError",
        "This model's maximum context length is 262144 tokens. However, you requested 128000 output "
        "tokens and "
        "your prompt contains at least 134145 input tokens, for a total of at least 262145 tokens.",
    ),
    # huggingface/llm-vscode#94
    (
        422,
        "",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3474 "
        "`inputs` tokens",
    ),
    # ddalcu/mlx-serve#66
    (400, "", "Prompt exceeds maximum context length"),
    # continuedev/continue#10218
    (
        413,
        "rate_limit_exceeded",
        "Request too large for model `llama-3.3-70b-versatile` on tokens per minute (TPM): Limit 12000, "
        "Requested "
        "14137, please reduce your message size and try again.",
    ),
]

OTHERS = [
    # RooCodeInc/Roo-Code#5729: a limit of the answer, which a shorter prompt does not change
    (ProviderRefused, False, 400, "", "max_tokens must be less than or equal to 16384, the maximum value"),
    (
        ProviderRefused,
        False,
        400,
        "invalid_request_error",
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
    ),
    (
        ProviderRefused,
        False,
        400,
        "string_above_max_length",
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40.",
    ),
    # anthropics/claude-code#4684
    (
        OutOfCredit,
        False,
        400,
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
        "upgrade or "
        "purchase credits.",
    ),
    # continuedev/continue#9853, #10373, warpdotdev/warp#14867
    (OutOfCredit, False, 402, "", "Insufficient Balance"),
    (
        OutOfCredit,
        False,
        429,
        "",
        "Your team 16f2151a has either used all available credits or reached its monthly spending limit.",
    ),
    (
        OutOfCredit,
        False,
        403,
        "",
        "Your team has either used all available credits or reached its monthly spending limit.",
    ),
    # can1357/oh-my-pi#9569
    (OutOfCredit, False, 402, "", "This request requires more credits, or fewer max_tokens."),
    # hsliuping/TradingAgents-CN#170, RooCodeInc/Roo-Code#12309
    (
        OutOfCredit,
        False,
        400,
        "Arrearage",
        "Access denied, please make sure your account is in good standing.",
    ),
    (OutOfCredit, False, 403, "", "Access denied due to overdue account"),
    (
        OutOfCredit,
        False,
        429,
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    (OutOfCredit, False, None, "insufficient_quota", "You exceeded your current quota"),
    (OutOfCredit, False, 429, "exceeded_current_quota_error", "Your account is suspended"),
    # can1357/oh-my-pi#449, google-gemini/gemini-cli#25198
    (KeyRefused, False, 400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
    (KeyRefused, False, 400, "INVALID_ARGUMENT", "API Key not found. Please pass a valid API key."),
    (KeyRefused, False, 403, "PERMISSION_DENIED", "Your API key was reported as leaked. Please use another."),
    (KeyRefused, False, 401, "", "no"),
    (KeyRefused, False, None, "authentication_error", "invalid x-api-key"),
    (ProviderRefused, False, 403, "unsupported_country_region_territory", "Country not supported"),
    # continuedev/continue#10920, elizaOS/eliza#4040
    (
        QuotaExceeded,
        False,
        429,
        "rate_limit_exceeded",
        "Rate limit reached for model `llama-3.3-70b-versatile` on tokens per day (TPD): Limit 100000, "
        "Used 97050, "
        "Requested 3619. Please try again in 9m38s. Upgrade at https://console.groq.com/settings/billing",
    ),
    (
        RateLimited,
        True,
        429,
        "rate_limit_exceeded",
        "Rate limit reached for model `llama-3.1-8b-instant` on tokens per minute (TPM): Limit 6000, "
        "Used 5034, "
        "Requested 1443. Please try again in 4.77s. Upgrade at https://console.groq.com/settings/billing",
    ),
    (RateLimited, True, 429, "ThrottlingException", "Too many tokens, please wait before trying again."),
    (RateLimited, True, 429, "RESOURCE_EXHAUSTED", "Resource exhausted. Please try again later."),
    # MoonshotAI/MoonshotAI-Cookbook#16
    (
        Overloaded,
        True,
        429,
        "engine_overloaded_error",
        "The engine is currently overloaded, please try again later",
    ),
    (Overloaded, True, 529, "overloaded_error", "Overloaded"),
    (Overloaded, True, None, "overloaded_error", "Overloaded"),
    (Overloaded, True, 503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    # openai/openai-python#331, compl-ai/compl-ai#20
    (
        ContentRefused,
        False,
        400,
        "content_filter",
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
    ),
    (ContentRefused, False, 400, "data_inspection_failed", "Input data may contain inappropriate content."),
    (ProviderFailed, True, 499, "CANCELLED", "The operation was cancelled."),
    (ProviderFailed, True, 500, "server_error", "The server had an error while processing your request."),
]


def error_of(status: int | None, code: str, message: str, **more: Any) -> ProviderError:
    body = {"error": {"message": message, "code": code, **more}}
    upstream_error = read_error_body(msgspec.json.encode(body))
    return as_provider_error(msgspec.structs.replace(upstream_error, status=status))


@pytest.mark.parametrize(("status", "code", "message"), TOO_LONG, ids=lambda value: str(value)[:40])
def test_every_known_wording_of_a_full_context_window_is_understood(
    status: int | None, code: str, message: str
) -> None:
    error = error_of(status, code, message)

    assert type(error) is ContextTooLong
    assert message[:60] in error.message


@pytest.mark.parametrize(
    ("kind", "retryable", "status", "code", "message"), OTHERS, ids=lambda value: str(value)[:40]
)
def test_failures_are_told_apart_and_retried_only_where_that_may_help(
    kind: type[ProviderError], retryable: bool, status: int | None, code: str, message: str
) -> None:
    error = error_of(status, code, message)

    assert type(error) is kind
    assert error.retryable is retryable
    assert ("Check this provider's key" in error.message) is (kind is KeyRefused)


def test_googles_quota_of_a_day_is_told_from_its_rate() -> None:
    text = "You exceeded your current quota, please check your plan and billing details."
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "23s"}
    violation = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}

    rate = error_of(429, "RESOURCE_EXHAUSTED", text, details=[delay])
    day = error_of(429, "RESOURCE_EXHAUSTED", text, details=[delay, violation])

    assert (type(rate), rate.retryable, rate.retry_after) == (RateLimited, True, 23.0)
    assert (type(day), day.retryable) == (QuotaExceeded, False)


def test_a_long_error_text_is_classified_at_once() -> None:
    started = time.perf_counter()

    for text in ("context " * 8000, "exceeds " * 8000, "prompt has " * 6000, "max_tokens is " * 4000):
        error_of(400, "x", text)

    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "text",
    [
        "unknown parameter key_value_cache_settings_enabled",
        "the tool sk-learn-compatible-endpoint-settings does not exist",
        "key-based-authentication-is-not-supported-here",
        "Bearer authentication is required",
        "rk-is-not-a-known-prefix-of-models",
        "ollama is busy; the local server none of the models not-needed",
    ],
)
def test_masking_leaves_ordinary_words(text: str) -> None:
    for secret in ("", "ollama", "local", "none", "not-needed", "sk-0123456789abcdefghij"):
        assert redact(text, secret) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Incorrect API key provided: sk-proj-abcd1234efgh5678ijkl.", ""),
        ("key AIzaSyA0123456789abcdefghijklmnopq was refused", ""),
        ("sent Authorization: Bearer abc123def456ghi789", ""),
        ("the header was 'correct horse battery staple'", "correct horse battery staple"),
        ("the key hunter2pass is wrong", "hunter2pass"),
        ("invalid api key: ollama", "ollama"),
        ('got "ollama" as key', "ollama"),
        ("url ?key=a%2Fb%3D0123456789 failed", "a/b=0123456789"),
    ],
)
def test_masking_hides_keys(text: str, secret: str) -> None:
    masked = redact(text, secret)

    assert "[redacted]" in masked
    assert not secret or secret not in masked


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("glm does not accept images", "glm does not accept images"),
        ('{"error": {"message": "no images", "code": 400}}', "no images"),
        ({"error": {"message": "no images"}}, "no images"),
    ],
)
def test_reason_of_the_provider_behind_a_gateway_is_kept(raw: object, reason: str) -> None:
    metadata = {"raw": raw, "provider_name": "BaseTen"}
    error = {"error": {"message": "Provider returned error", "code": 400, "metadata": metadata}}
    read = as_provider_error(read_error(error))
    assert read.message.endswith(f"Provider returned error: {reason} (BaseTen)")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"error": ' * 300 + b"1" + b"}" * 300,
        b'{"error": {"code": ["\\ud800"]}}',
        b"<" * 60_000,
    ],
    ids=["brackets", "errors", "surrogate", "angles"],
)
def test_an_error_of_any_shape_is_a_refusal(body: bytes) -> None:
    error = as_provider_error(msgspec.structs.replace(read_error_body(body), status=400))
    assert isinstance(error, ProviderRefused)
    error.message.encode()


def test_half_of_a_character_in_an_error_is_replaced() -> None:
    assert read_error_body(b'{"error": {"message": "no \\ud83d"}}').message == "no \ufffd"


def test_a_status_in_other_digits_is_none() -> None:
    assert read_error({"message": "no", "status": "\u00b2"}).status is None


@pytest.mark.parametrize(
    ("header", "sentence"),
    [("1e400", "a very long time"), ("1e300", "a very long time"), ("7200", "2 hours")],
)
def test_a_wait_of_any_length_is_told(header: str, sentence: str) -> None:
    error = with_wait(RateLimited("Slow down.", retry_after=retry_after_seconds(header)))
    assert error.message == f"Slow down. Try again in {sentence}, or choose another model."
