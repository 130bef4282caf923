# One image for every process: engine, workers, sweeper, migrations, command line. `docker build -t quarry .`
# With CUDA: --build-arg EXTRAS=gpu. For machines without a GPU, --build-arg INDEX=<PyTorch's CPU wheel index> saves
# some gigabytes.
FROM python:3.12-slim AS build
ARG EXTRAS=""
ARG INDEX=""
WORKDIR /src
RUN python -m venv /opt/quarry
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Dependencies first: they change seldom, and this layer is the large one.
COPY pyproject.toml constraints.txt README.md ./
RUN mkdir empty && cp pyproject.toml README.md empty/ \
    && /opt/quarry/bin/pip install --constraint constraints.txt ${INDEX:+--extra-index-url "$INDEX"} \
       "./empty${EXTRAS:+[$EXTRAS]}" \
    && /opt/quarry/bin/pip uninstall --yes quarry
COPY . .
RUN /opt/quarry/bin/pip install --no-deps .

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 quarry && install -d -o quarry -g quarry /data
COPY --from=build /opt/quarry /opt/quarry
ENV PATH=/opt/quarry/bin:$PATH QUARRY_HOME=/data PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER quarry
WORKDIR /data
VOLUME /data
CMD ["quarry", "--help"]
