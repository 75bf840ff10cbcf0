"""The sandbox: how programs that are not trusted are started, confined and ended."""
