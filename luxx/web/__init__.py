"""The web UI: its sources (TypeScript, `src/`), how they are built (`build.py`) and served (`files.py`)."""
