"""Files and pictures of artifacts."""
