"""The parts of messages as each dialect sends them: texts and images in their order, and authors' names."""

import json
from base64 import b64encode
from typing import Any

import pytest

from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.registry import completion_adapter
from luxx.wire.message import AssistantPrompt, PromptImage, PromptMessage, UserPrompt, joined_parts

PNG = [PromptImage(media_type="image/png", data=data) for data in (b"one", b"two", b"three")]
DATA = [b64encode(image.data).decode() for image in PNG]
TYPES = ("openai", "openai_compatible", "openai_responses", "anthropic", "gemini")


def sent(kind: str, *messages: PromptMessage) -> list[dict[str, Any]]:
    """The messages as a provider of this type gets them."""
    target = Target(provider_id=1, provider_type=kind, base_url="http://host/v1")
    request = CompletionRequest(model="m", messages=list(messages))
    body = json.loads(completion_adapter(request, target).build_request(request, target, stream=True).body)
    return next(body[name] for name in ("messages", "input", "contents") if name in body)


def contents(message: dict[str, Any]) -> list[str]:
    """Each text, and of each image its data, in their order."""
    parts: Any = message.get("content") or message.get("parts")
    return [parts] if isinstance(parts, str) else [_content(part) for part in parts]


def _content(part: dict[str, Any]) -> str:
    image = part.get("image_url") or part.get("source") or part.get("inlineData")
    if image is None:
        return part["text"]
    return image.rpartition(",")[2] if isinstance(image, str) else (image.get("data") or _content_of(image))


def _content_of(image: dict[str, Any]) -> str:
    return image["url"].rpartition(",")[2]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["Before:", PNG[0], "After:", PNG[1]], ["Before:", DATA[0], "After:", DATA[1]]),
        ([PNG[0], PNG[1], "Compare."], [DATA[0], DATA[1], "Compare."]),
        (["One\n", "two", PNG[0]], ["One\n\ntwo", DATA[0]]),
        (["One\n", PNG[0], PNG[1], "\nTwo", PNG[2]], ["One\n", DATA[0], DATA[1], "\nTwo", DATA[2]]),
        ([PNG[0]], [DATA[0]]),
        (["One", "two"], ["One\ntwo"]),
    ],
)
def test_texts_and_images_keep_their_order(kind: str, parts: list[Any], expected: list[str]) -> None:
    text, offsets = joined_parts(parts)
    images = tuple(part for part in parts if isinstance(part, PromptImage))
    assert contents(sent(kind, UserPrompt(text=text, images=images, offsets=tuple(offsets)))[0]) == expected


def test_images_of_a_message_without_offsets_come_first() -> None:
    prompt = UserPrompt(text="See.", images=(PNG[0], PNG[1]))
    assert contents(sent("anthropic", prompt)[0]) == [DATA[0], DATA[1], "See."]


@pytest.mark.parametrize("kind", ["openai", "deepseek", "openrouter"])
def test_vendors_with_a_field_for_names_get_them_there(kind: str) -> None:
    user, assistant = sent(
        kind, UserPrompt(text="Hi.", name="Adam"), AssistantPrompt(text="Yes?", name="Bot")
    )
    assert (user, assistant) == (
        {"role": "user", "name": "Adam", "content": "Hi."},
        {"role": "assistant", "name": "Bot", "content": "Yes?"},
    )


@pytest.mark.parametrize("kind", ["openai_compatible", "mistral", "openai_responses", "anthropic", "gemini"])
def test_others_get_names_in_front_of_the_text(kind: str) -> None:
    text, offsets = joined_parts(["Look", PNG[0], "here"])
    prompt = UserPrompt(text=text, images=(PNG[0],), offsets=tuple(offsets), name="Adam")
    user, assistant, *_ = sent(kind, prompt, AssistantPrompt(text="Yes?", name="Bot"), UserPrompt(text="Go."))
    assert contents(user) == ["[Adam] Look", DATA[0], "here"]
    assert contents(assistant) == ["[Bot] Yes?"]
    assert "name" not in user.keys() | assistant.keys()


def test_name_that_the_field_refuses_stands_in_front_of_the_text() -> None:
    assert sent("openai", UserPrompt(text="Hi.", name="Adam Smith")) == [
        {"role": "user", "content": "[Adam Smith] Hi."}
    ]
