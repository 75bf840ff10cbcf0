"""Files and pictures of artifacts, made from their sources in a process without network and workspace."""
