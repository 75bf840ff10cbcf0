"""What the scripted models answer in the tests of the web UI."""

from luxx.providers.scripted import Rule, Script, Text, When

SCRIPT = Script(rules=[Rule(when=When(user="hello"), reply=[Text(text="Hello to you", pieces=3)])])
