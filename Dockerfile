# One image for the demo, for experiments and for Flower deployments.
#   docker build -t fedloom .
#   docker run --rm fedloom compare --tuned /demo --seeds 5 --no-personal --eval-every 0      # the README's demo
#   docker run --rm -v "$PWD:/work" fedloom run recipe.yaml --name first                       # your own recipe
#   docker run --rm -p 8000:8000 --entrypoint flower-superlink fedloom --insecure \
#     --disable-runtime-dependency-installation --host 0.0.0.0                                 # a Flower server
#   docker run --rm -v /data:/data:ro --entrypoint flower-supernode fedloom --insecure --superlink HOST:8000 \
#     --node-config 'partition-id=0 name="hospital-0" data="/data/site-0.npz"'                 # one of its nodes
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-deps --no-cache-dir -w /dist .

FROM python:3.12-slim
# g++ compiles the native kernels once, while the image is made
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=build /dist /dist
# PyTorch's CPU build; without the index, pip takes the one with CUDA
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu "$(ls /dist/*.whl)[flower,hub,tables,tune]"
COPY demo /demo
RUN useradd --create-home fedloom && mkdir /work && chown fedloom /work
USER fedloom
WORKDIR /work
ENV FLWR_TELEMETRY_ENABLED=0
RUN fedloom run --model cnn --rounds 1 --out /tmp/first && rm -r /tmp/first
ENTRYPOINT ["fedloom"]
