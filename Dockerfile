# syntax=docker/dockerfile:1
#
#   docker build -t pegboard .
#   docker run --rm -p 8000:8000 -v pegboard-models:/models -e PEGBOARD_API_KEY=KEY pegboard MODEL
#
# DEVICE       cpu (the default) or cuda
# TORCH_INDEX  an additional package index, used for torch alone: for cpu, PyTorch's CPU wheel index
#              keeps the image small where the usual index has only the build for GPUs
# EXTRAS       more parts of the metapackage, such as fp8,connectors,kv-events

ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS wheels
ARG SOURCE_DATE_EPOCH=
WORKDIR /src
RUN pip install --no-cache-dir "build>=1.2" "hatchling>=1.27"
COPY . .
RUN python scripts/dist.py --out /dist

FROM python:${PYTHON}-slim-bookworm AS install
ARG DEVICE=cpu
ARG TORCH_INDEX=
ARG EXTRAS=
COPY constraints /constraints
COPY docker/install.sh /install.sh
COPY --from=wheels /dist /dist
RUN sh /install.sh /app /dist

FROM python:${PYTHON}-slim-bookworm
ARG DEVICE=cpu
# Triton compiles what launches its kernels.
# hadolint ignore=DL3008
RUN if [ "$DEVICE" = cuda ]; then \
      apt-get update \
      && apt-get install -y --no-install-recommends gcc libc6-dev \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && useradd --uid 10001 --create-home pegboard \
    && install -d -o pegboard -g pegboard /models
COPY --from=install /app /app
ENV PATH=/app/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/models/hub
USER 10001
WORKDIR /models
VOLUME ["/models"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# A large model takes its time to load: until then the server answers 503.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["pegboard", "serve", "--host", "0.0.0.0", "--port", "8000"]
