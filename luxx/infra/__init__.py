"""What every layer above builds on: database, bus, network, documents, configuration."""
