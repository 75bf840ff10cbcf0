"""File access inside a workspace, safe against symbolic links and race conditions."""
