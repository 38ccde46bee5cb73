# An image of Palmette: docker build -t palmette . ; docker run palmette palmette list algorithms
# The compose file of a deployment kit uses it under this name. It was read, and never built: the machine it was written on has no Docker.
#
# On Linux, pip takes the build of torch for CUDA, some gigabytes. For the build for CPUs, give pip the index that pytorch.org names for it
# under "Get started": docker build -t palmette --build-arg PIP_EXTRA_INDEX_URL=... .

FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY src src
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL=""
COPY constraints.txt /tmp/
COPY --from=build /wheels /wheels
# libgomp1: torch's threads.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheels/*.whl)[deploy]" \
    && rm -rf /wheels /tmp/constraints.txt
WORKDIR /work
ENV PALMETTE_DATA=/data MPLCONFIGDIR=/tmp/matplotlib
VOLUME ["/work", "/data"]
CMD ["palmette", "--help"]
