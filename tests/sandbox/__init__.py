"""The sandbox under attack: attempts (attacks, bombs), where they are made (prison), what must hold."""
