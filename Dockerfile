# syntax=docker/dockerfile:1
# The image of `luxx serve` and `luxx worker`. docs/operate/deployment.md says how to use it.

ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY luxx luxx
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/luxx \
    && /opt/luxx/bin/pip install --constraint constraints.txt ".[local,postgres,mcp,redis,search,artifacts]" \
    # The web UI, which an installation can lack.
    && test -f /opt/luxx/lib/python3*/site-packages/luxx/web/dist/index.html

FROM python:${PYTHON}-slim-bookworm
# A library of the embedded model's package.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
# Empty volumes get the owner and the mode of these directories.
RUN groupadd --gid 10001 luxx \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /srv/luxx --shell /usr/sbin/nologin luxx \
    && install -d /srv/luxx \
    && install -d -o luxx -g luxx -m 0700 /srv/luxx/data /srv/luxx/workspaces
COPY --from=build /opt/luxx /opt/luxx
COPY config.yaml /srv/luxx/config.yaml

ENV PATH=/opt/luxx/bin:$PATH \
    LUXX_APP__HOST=0.0.0.0
# Commands find config.yaml, the data and the workspaces here, also those of `docker exec`.
WORKDIR /srv/luxx
USER 10001:10001
VOLUME ["/srv/luxx/data", "/srv/luxx/workspaces"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ.get('LUXX_APP__PORT', 8000)}/ready\", timeout=4)"]
CMD ["luxx", "serve"]
