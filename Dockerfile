# An image in which comparisons run; docs/notebook.md says how. `--build-arg TORCH=cuda12` is for drivers before 580.
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git make && rm -rf /var/lib/apt/lists/*
WORKDIR /ddp-compare
COPY . .
ARG TORCH=
RUN make setup ${TORCH:+TORCH="$TORCH"}
ENV PATH=/ddp-compare/.venv/bin:$PATH
ENTRYPOINT ["ddp-compare"]
CMD ["run"]
