"""Memory: what Luxx knows of people, projects and rooms, as facts with sources and times, and their graph."""
