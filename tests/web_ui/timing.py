"""What a page is measured with: a long conversation, and scripts that note when something is shown."""

import json

FILLER = "Some **words** with `code`, as long as an answer often is.\n\n- one\n- two\n\nAnd an end. " * 2

OPENING = """([id, words]) => {
  const began = performance.now()
  new MutationObserver((_, observer) => {
    if (!document.querySelector('main')?.textContent.includes(words)) return
    observer.disconnect()
    requestAnimationFrame(() => { window.openedIn = performance.now() - began })
  }).observe(document.body, { subtree: true, childList: true })
  document.querySelector(`a[href$="${id}"]`).click()
}"""
"""Opens a conversation by its link in the list; `window.openedIn` is in ms, until the words are shown."""

FIRST_TOKEN = """words => {
  window.tokenTimes = {}
  const parse = JSON.parse
  JSON.parse = json => {
    const value = parse(json)
    const text = value?.type === 'process_step' && (value.step.delta || value.step.content)
    if (text) window.tokenTimes.received ??= performance.now()
    return value
  }
  new MutationObserver((_, observer) => {
    const texts = [...document.querySelectorAll('main .prose')].map(each => each.textContent)
    if (!texts.some(text => text.includes(words))) return
    observer.disconnect()
    requestAnimationFrame(() => { window.tokenTimes.shown = performance.now() })
  }).observe(document.body, { subtree: true, childList: true, characterData: true })
}"""
"""`window.tokenTimes` has the times in ms of the first event with text and of the frame with the words."""


def long_conversation(count: int) -> str:
    """A conversation with so many messages, in the form of Claude's export."""
    messages = [
        {
            "uuid": str(number),
            "sender": "human" if number % 2 == 0 else "assistant",
            "text": f"Message {number}. {FILLER}",
            "created_at": f"2026-02-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z",
        }
        for number in range(count)
    ]
    return json.dumps([{"uuid": "1", "name": "A long talk", "chat_messages": messages}])
